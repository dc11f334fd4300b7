"""Operators that are alike, as far as a network of a few rounds of messages can tell."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.workload import Workload
from dippm.features.physical.links import Links

__all__ = ["ROUNDS", "colours_of"]

Float32Array = npt.NDArray[np.float32]

ROUNDS = 2
"""Rounds of messages for which classes of operators are exact."""


def colours_of(work: Workload, static: Float32Array, links: Links) -> IndexArray:
    """Numbers that are equal for operators of equal work whose neighbours are alike, [n_nodes].

    Args:
        work: The work of the graph.
        static: Features of each node that do not change.
        links: Which operators read from which.
    """
    colours = _own_colours(work, static)
    for _ in range(ROUNDS):
        colours = _refine(colours, links)
    return colours


def _own_colours(work: Workload, static: Float32Array) -> IndexArray:
    """Numbers that are equal for operators of equal work."""
    node_count = len(static)
    columns = [static.astype(np.float64), work.flops, work.bytes_read, work.bytes_written]
    tables = (work.gemm, work.convolution, work.attention, work.recurrent, work.row, work.pool, work.reduction)
    for table in tables:
        sizes = table.table
        own = np.zeros((node_count, sizes.sizes * sizes.polynomials.shape[1]))
        if len(sizes.node):
            rows = sizes.polynomials.reshape(sizes.sizes, len(sizes.node), -1)
            own[sizes.node] = np.moveaxis(rows, 1, 0).reshape(len(sizes.node), -1)
        columns.append(own)
    cast = np.zeros((node_count, work.cast_elements.shape[1]))
    np.add.at(cast, work.types.casts.node, work.cast_elements)
    columns.append(cast)
    table_of_all = np.ascontiguousarray(np.concatenate(columns, axis=1))
    seen: dict[bytes, int] = {}
    return np.array([seen.setdefault(row.tobytes(), len(seen)) for row in table_of_all], dtype=np.int64)


def _refine(colours: IndexArray, links: Links) -> IndexArray:
    """Split colours by the colours of the neighbours."""
    count = len(colours)
    source, target = links.edges
    # Of each node its own colour, then those of its producers, then those of its consumers.
    node = np.concatenate([np.arange(count), target, source])
    told = np.concatenate([colours, count + colours[source], 2 * count + colours[target]])
    words = told[np.lexsort((told, node))]
    stops = np.cumsum(np.bincount(node, minlength=count)).tolist()
    seen: dict[bytes, int] = {}
    return np.array(
        [seen.setdefault(words[start:stop].tobytes(), len(seen)) for start, stop in pairwise([0, *stops])],
        dtype=np.int64,
    )
