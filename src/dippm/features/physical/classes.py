"""Operators that are alike, as far as a network of a few rounds of messages can tell."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.numbering import number_rows, number_stretches
from dippm.features.physical.links import Links

__all__ = ["ROUNDS", "colours_of"]

Float32Array = npt.NDArray[np.float32]

ROUNDS = 2
"""Rounds of messages for which classes of operators are exact."""


def colours_of(kernels: KernelPlan, static: Float32Array, links: Links) -> IndexArray:
    """Numbers that are equal for operators of a graph of equal work whose neighbours are alike, [n_nodes].

    They ascend in the order in which they first appear, so that those of one graph are lower than those of the next.

    Args:
        kernels: The kernels of the graph.
        static: Features of each node that do not change.
        links: Which operators read from which.
    """
    colours = _own_colours(kernels, static)
    for _ in range(ROUNDS):
        colours = _refine(colours, links)
    return colours


def _own_colours(kernels: KernelPlan, static: Float32Array) -> IndexArray:
    """Numbers that are equal for operators of equal work on images in the same order."""
    work, count = kernels.work, len(static)
    cast = np.zeros((count, work.cast_elements.shape[1]))
    np.add.at(cast, work.types.casts.node, work.cast_elements)
    of_all = np.concatenate([work.flops, work.bytes_read, work.bytes_written, cast], axis=1)
    # An operator has a row in the table of its family alone, and none is alike one of another family.
    in_family = np.zeros(count, dtype=np.int64)
    for table in (work.gemm, work.convolution, work.attention, work.recurrent, work.row, work.pool, work.reduction):
        sizes = table.table
        if len(sizes.node):
            rows = np.moveaxis(sizes.polynomials.reshape(sizes.sizes, len(sizes.node), -1), 1, 0)
            in_family[sizes.node] = number_rows(rows.reshape(len(sizes.node), -1))
    start = work.sizes.arrays.node_start
    graph = np.repeat(np.arange(len(start) - 1), np.diff(start))
    order = np.zeros(count, dtype=np.int64)
    for formats in kernels.formats.values():
        order = 4 * order + 2 * formats.is_read_last + formats.is_last
    of_each = [graph, number_rows(static), number_rows(of_all), in_family, order, kernels.is_launched]
    return number_rows(np.stack(of_each, axis=1))


def _refine(colours: IndexArray, links: Links) -> IndexArray:
    """Split colours by the colours of the neighbours."""
    count = len(colours)
    source, target = links.producer, links.consumer
    # Of each node its own colour, then those of its producers, then those of its consumers.
    node = np.concatenate([np.arange(count), target, source])
    told = np.concatenate([colours, count + colours[source], 2 * count + colours[target]])
    # One number sorts faster than two.
    words = np.sort(node * (3 * count) + told) % (3 * count)
    return number_stretches(words, np.cumsum(np.bincount(node, minlength=count)))
