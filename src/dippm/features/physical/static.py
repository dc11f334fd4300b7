"""Columns that depend on neither batch nor device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.precision import Arithmetic
from dippm.costs.training_step.training_graph import Phase
from dippm.costs.workload import Workload
from dippm.features.physical.columns import ALIGNMENTS, AT, FORMATS, FUNCTIONS, PIXEL_ALIGNMENTS, STATIC
from dippm.features.physical.links import Links
from dippm.graph import OpKind

__all__ = ["static_features"]

Float32Array = npt.NDArray[np.float32]

_GRADIENT_KINDS = frozenset(kind for kind in OpKind if kind.value.endswith("_grad"))
_COLUMN_OF_KIND = np.array([AT[f"is_{kind.value}"] for kind in OpKind])
_COLUMN_OF_FUNCTION: dict[object, int] = {function: AT[f"function_{function}"] for function in FUNCTIONS}
_COLUMN_OF_GRADIENT: dict[object, int] = {kind.value: AT[f"is_{kind.value}"] for kind in OpKind}


def static_features(
    work: Workload, kernels: KernelPlan, links: Links, phase: npt.NDArray[np.int8] | None, *, node: IndexArray
) -> Float32Array:
    """Features of some nodes that do not change, [n, len(STATIC)].

    Args:
        work: The work of the graph.
        kernels: Its kernels.
        links: Which operators read from which.
        phase: Phase of each node of a training step; None for a forward graph.
        node: The nodes.
    """
    sizes, edges, every = work.sizes, work.sizes.edges, np.arange(len(node), dtype=np.int64)
    place = np.full(len(sizes.nodes), -1)
    place[node] = every
    result = np.zeros((len(node), len(STATIC)), dtype=np.float32)
    result[every, _COLUMN_OF_KIND[sizes.arrays.kind[node]]] = 1.0
    phases = np.zeros(len(node), dtype=np.int64) if phase is None else phase[node].astype(np.int64)
    result[every, AT[f"in_{Phase(0).name.lower()}"] + phases] = 1.0
    formats = tuple(Arithmetic)
    for name, alike in FORMATS.items():
        result[:, AT[f"in_{name}"]] = np.isin(kernels.arithmetic[node], [formats.index(value) for value in alike])
    # A gradient is like that of which it is the gradient.
    gradients = np.flatnonzero(sizes.is_kind(*_GRADIENT_KINDS)[node])
    functions = sizes.arrays.functions
    for chosen, columns_of in ((every, _COLUMN_OF_FUNCTION), (gradients, _COLUMN_OF_GRADIENT)):
        of_functions = np.array([*(columns_of.get(function, -1) for function in functions), -1])
        column = of_functions[sizes.arrays.function[node[chosen]]]
        meant = column >= 0
        result[chosen[meant], column[meant]] = 1.0
    source, out = sizes.inputs(node, 0), sizes.outputs(node)
    reductions = np.flatnonzero(sizes.is_kind(OpKind.REDUCE)[node])
    for position, rank in zip(reductions.tolist(), sizes.rank(source[reductions]).tolist(), strict=True):
        axes = sizes.nodes[node[position]].attributes.get("axes")
        if isinstance(axes, tuple):
            result[position, AT["is_last"]] = rank - 1 in axes
    held = np.append(work.types.tensor_bytes, 0.0)
    storage = np.append(sizes.arrays.storage, -1)
    columns = {
        "input_bytes": held[source],
        "output_bytes": held[out],
        "inputs": np.log1p(np.bincount(edges.read_node[edges.is_first], minlength=len(sizes.nodes))[node]),
        "input_rank": sizes.rank(source),
        "output_rank": sizes.rank(out),
        "is_in_place": (source >= 0) & (out >= 0) & (storage[source] == storage[out]),
        "reads_reordered": links.reads_reordered[node],
        "reads_part": links.reads_part[node],
        "is_read_reordered": links.is_read_reordered[node],
        "width": np.log(np.maximum(sizes.dimension(source, -1)[:, 0], 1.0)),
        "in_height": np.log(np.maximum(sizes.dimension(source, -2)[:, 0], 1.0)),
        "out_height": np.log(np.maximum(sizes.dimension(out, -2)[:, 0], 1.0)),
    }
    for name, values in columns.items():
        result[:, AT[name]] = values
    _fill_convolutions(result, work, place)
    gemm, attention, row = work.gemm, work.attention, work.row
    for name, table, values in (
        ("has_bias", gemm.table, gemm.has_bias),
        ("has_mask", attention.table, attention.has_mask),
        ("is_last", row.table, row.is_last),
    ):
        own = place[table.node] >= 0
        result[place[table.node[own]], AT[name]] = values[own]
    return result


def _fill_convolutions(result: Float32Array, work: Workload, place: IndexArray) -> None:
    """Fill in what convolutions have; ``place`` is the row of each node, -1 for those without one."""
    (chosen,) = np.nonzero(place[work.convolution.table.node] >= 0)
    if not len(chosen):
        return
    at = work.convolution.at(np.ones(1)).take(chosen)
    cin, cout = np.maximum(at.in_channels[0], 1.0), np.maximum(at.out_channels[0], 1.0)
    groups = np.maximum(at.groups, 1.0)
    area = at.kernel_height * at.kernel_width
    columns = {
        "kernel": np.log1p(area),
        "is_pointwise": area == 1.0,
        "is_long": at.kernel_height != at.kernel_width,
        "stride": np.log(np.maximum(at.stride_height * at.stride_width, 1.0)),
        "dilation": np.log(np.maximum(at.dilation_height * at.dilation_width, 1.0)),
        "groups": np.log(groups),
        "in_channels": np.log(cin),
        "out_channels": np.log(cout),
        "group_inputs": np.log(cin / groups),
        "group_outputs": np.log(cout / groups),
        "is_depthwise": (groups > 1.0) & (groups >= cin),
        "is_grouped": (groups > 1.0) & (groups < cin),
        "has_bias": at.has_bias,
    }
    for size in ALIGNMENTS:
        columns[f"in_channels_by_{size}"] = (cin / groups) % size == 0
        columns[f"out_channels_by_{size}"] = (cout / groups) % size == 0
    pixels = at.in_height[0] * at.in_width[0]
    for size in PIXEL_ALIGNMENTS:
        columns[f"pixels_by_{size}"] = pixels % size == 0
    for name, values in columns.items():
        result[place[at.node], AT[name]] = values
