"""Columns that depend on neither batch nor device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.precision import Arithmetic
from dippm.costs.training_step.training_graph import Phase
from dippm.costs.workload import Workload
from dippm.features.physical.columns import ALIGNMENTS, AT, FORMATS, FUNCTIONS, STATIC
from dippm.features.physical.links import Links
from dippm.graph import OpKind

__all__ = ["static_features"]

Float32Array = npt.NDArray[np.float32]

_GRADIENT_KINDS = frozenset(kind for kind in OpKind if kind.value.endswith("_grad"))
_COLUMN_OF_KIND = np.array([AT[f"is_{kind.value}"] for kind in OpKind])
_COLUMN_OF_FUNCTION: dict[object, int] = {function: AT[f"function_{function}"] for function in FUNCTIONS}
_COLUMN_OF_GRADIENT: dict[object, int] = {kind.value: AT[f"is_{kind.value}"] for kind in OpKind}


def static_features(
    work: Workload, kernels: KernelPlan, links: Links, phase: npt.NDArray[np.int8] | None
) -> Float32Array:
    """Features of each node that do not change, [n_nodes, len(STATIC)].

    Args:
        work: The work of the graph.
        kernels: Its kernels.
        links: Which operators read from which.
        phase: Phase of each node of a training step; None for a forward graph.
    """
    nodes, edges = work.sizes.nodes, work.sizes.edges
    every = np.arange(len(nodes), dtype=np.int64)
    result = np.zeros((len(nodes), len(STATIC)), dtype=np.float32)
    result[every, _COLUMN_OF_KIND[work.sizes.arrays.kind]] = 1.0
    phases = np.zeros(len(nodes), dtype=np.int64) if phase is None else phase.astype(np.int64)
    result[every, AT[f"in_{Phase(0).name.lower()}"] + phases] = 1.0
    formats = tuple(Arithmetic)
    for name, alike in FORMATS.items():
        result[:, AT[f"in_{name}"]] = np.isin(kernels.arithmetic, [formats.index(value) for value in alike])
    # A gradient is like that of which it is the gradient.
    gradients = np.flatnonzero(work.sizes.is_kind(*_GRADIENT_KINDS))
    functions = work.sizes.arrays.functions
    for chosen, columns_of in ((every, _COLUMN_OF_FUNCTION), (gradients, _COLUMN_OF_GRADIENT)):
        of_functions = np.array([*(columns_of.get(function, -1) for function in functions), -1])
        column = of_functions[work.sizes.arrays.function[chosen]]
        meant = column >= 0
        result[chosen[meant], column[meant]] = 1.0
    source, out = work.sizes.inputs(every, 0), work.sizes.outputs(every)
    reductions = np.flatnonzero(work.sizes.is_kind(OpKind.REDUCE))
    for position, rank in zip(reductions.tolist(), work.sizes.rank(source[reductions]).tolist(), strict=True):
        axes = nodes[position].attributes.get("axes")
        if isinstance(axes, tuple):
            result[position, AT["is_last"]] = rank - 1 in axes
    held = np.append(work.types.tensor_bytes, 0.0)
    storage = np.append(work.sizes.arrays.storage, -1)
    columns = {
        "input_bytes": held[source],
        "output_bytes": held[out],
        "inputs": np.log1p(np.bincount(edges.read_node[edges.is_first], minlength=len(nodes))),
        "input_rank": work.sizes.rank(source),
        "output_rank": work.sizes.rank(out),
        "is_in_place": (source >= 0) & (out >= 0) & (storage[source] == storage[out]),
        "reads_reordered": links.reads_reordered,
        "reads_part": links.reads_part,
        "is_read_reordered": links.is_read_reordered,
        "width": np.log(np.maximum(work.sizes.dimension(source, -1)[:, 0], 1.0)),
        "in_height": np.log(np.maximum(work.sizes.dimension(source, -2)[:, 0], 1.0)),
        "out_height": np.log(np.maximum(work.sizes.dimension(out, -2)[:, 0], 1.0)),
    }
    for name, values in columns.items():
        result[:, AT[name]] = values
    _fill_convolutions(result, work)
    gemm, attention, row = work.gemm, work.attention, work.row
    result[gemm.table.node, AT["has_bias"]] = gemm.has_bias
    result[attention.table.node, AT["has_mask"]] = attention.has_mask
    result[row.table.node, AT["is_last"]] = row.is_last
    return result


def _fill_convolutions(result: Float32Array, work: Workload) -> None:
    at = work.convolution.at(np.ones(1))
    node = at.node
    if not len(node):
        return
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
    for name, values in columns.items():
        result[node, AT[name]] = values
