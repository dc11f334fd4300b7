"""Operators that are alike, as far as a network of a few rounds of messages can tell."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.numbering import number_around, number_rows
from dippm.costs.polynomial import FloatArray, scatter_add
from dippm.features.physical.links import Links
from dippm.graph.columns import NONE

__all__ = ["ROUNDS", "colours_of"]

ROUNDS = 2
"""Rounds of messages for which classes of operators are exact."""

# Bytes of a number are parts of this: of a bit, and of what a scale of several numbers adds to each.
_BYTES_OF_NUMBER = 2**20


def colours_of(
    kernels: KernelPlan, links: Links, phase: npt.NDArray[np.int8] | None, *, weight_bytes: FloatArray
) -> IndexArray:
    """Numbers that are equal for operators of a graph of equal work whose neighbours are alike, [n_nodes].

    They ascend in the order in which they first appear, so that those of one graph are lower than those of the next.

    Args:
        kernels: The kernels of the graph.
        links: Which operators read from which.
        phase: Phase of each node of a training step; None for a forward graph.
        weight_bytes: Bytes of weights that each node reads.
    """
    colours = _own_colours(kernels, links, phase, weight_bytes)
    for _ in range(ROUNDS):
        colours = number_around(colours, links.producer, links.consumer)
    return colours


def _own_colours(
    kernels: KernelPlan, links: Links, phase: npt.NDArray[np.int8] | None, weight_bytes: FloatArray
) -> IndexArray:
    """Numbers that are equal for operators of which all features are equal, on images in the same order."""
    work, sizes = kernels.work, kernels.work.sizes
    arrays, count = sizes.arrays, len(sizes.nodes)
    every = np.arange(count, dtype=np.int64)
    cast = scatter_add(work.types.casts.node, work.cast_elements, count=count)
    of_all = np.concatenate([work.flops, work.bytes_read, work.bytes_written, cast, weight_bytes[:, None]], axis=1)
    # An operator has a row in the table of its family alone, and none is alike one of another family.
    in_family = np.zeros(count, dtype=np.int64)
    for table in (work.gemm, work.convolution, work.attention, work.recurrent, work.row, work.pool, work.reduction):
        sizes_of = table.table
        if len(sizes_of.node):
            rows = np.moveaxis(sizes_of.polynomials.reshape(sizes_of.sizes, len(sizes_of.node), -1), 1, 0)
            in_family[sizes_of.node] = number_rows(rows.reshape(len(sizes_of.node), -1))
    graph = np.repeat(np.arange(len(arrays.node_start) - 1), np.diff(arrays.node_start))
    source, second, out = sizes.inputs(every, 0), sizes.inputs(every, 1), sizes.outputs(every)
    held, storage = np.append(work.types.tensor_bytes, 0.0), np.append(arrays.storage, NONE)
    flags = np.zeros(count, dtype=np.int64)
    for flag in (
        *(is_so for formats in kernels.formats.values() for is_so in (formats.is_read_last, formats.is_last)),
        kernels.is_launched,
        links.reads_reordered,
        links.reads_part,
        links.is_read_reordered,
        storage[source] == storage[out],
        *(sizes.inputs(every, place) >= 0 for place in (2, 3)),
    ):
        flags = 2 * flags + flag
    of_each = [
        graph,
        arrays.kind,
        arrays.attribute,
        kernels.arithmetic,
        np.zeros_like(every) if phase is None else phase,
        flags,
        number_rows(of_all),
        in_family,
        *(arrays.shape[tensor] for tensor in (source, second, out)),
        *(_BYTES_OF_NUMBER * held[tensor] for tensor in (source, out)),
        np.bincount(sizes.edges.read_node[sizes.edges.is_first], minlength=count),
    ]
    return number_rows(np.stack(of_each, axis=1, dtype=np.int64, casting="unsafe"))
