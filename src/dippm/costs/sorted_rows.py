"""Which sorts are held where a block of threads holds a row, and which go through memory.

Source: ``aten/src/ATen/native/cuda/Sort.cpp`` and ``TensorTopK.cu`` in PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.polynomial import FloatArray
from dippm.costs.sizes import GraphSizes
from dippm.graph import Attribute, OpKind

__all__ = ["COUNTS", "SEARCHES", "SHORT_ROW", "is_held_in_blocks", "row_lengths"]

SEARCHES = ("topk", "kthvalue")
"""Functions that look for the largest keys of a row."""

COUNTS = ("searchsorted", "bucketize", "histc", "bincount")
"""Functions that look for the place of each element among others, and sort nothing."""

SHORT_ROW = 4096.0
"""Rows up to this are sorted where a block of threads holds them, and move once."""

_ROW_SORTS = ("sort", "argsort", "msort")


def row_lengths(sizes: GraphSizes, node: IndexArray) -> FloatArray:
    """Length of the rows that sorts go along, as polynomials; those of the last dimension where they do not say.

    Shapes:
        node: [n]; result: [n, 2].
    """
    axis = sizes.read_attributes(node, _axis).astype(np.int64)
    return sizes.dimension(sizes.inputs(node, 0), axis)


def is_held_in_blocks(sizes: GraphSizes) -> npt.NDArray[np.bool_]:
    """Sorts that take no memory beside their results: of short rows, and searches for the largest keys or for places.

    Shapes:
        Result: [n_nodes].
    """
    result: npt.NDArray[np.bool_] = sizes.is_kind(OpKind.SORT) & sizes.has_function(*SEARCHES, *COUNTS)
    sorts = np.flatnonzero(sizes.is_kind(OpKind.SORT) & sizes.has_function(*_ROW_SORTS))
    row = row_lengths(sizes, sorts)
    result[sorts] = (row[:, 0] <= SHORT_ROW) & np.all(row[:, 1:] == 0.0, axis=1)
    return result


def _axis(attributes: Mapping[str, Attribute]) -> float:
    axes = attributes.get("axes")
    return float(axes[0]) if isinstance(axes, tuple) and axes else -1.0
