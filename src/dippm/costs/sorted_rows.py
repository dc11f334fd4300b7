"""Which sorts are held where a block of threads holds a row, and which go through memory.

Source: ``aten/src/ATen/native/cuda/Sort.cpp`` and ``TensorTopK.cu`` in PyTorch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dippm.costs.sizes import GraphSizes

__all__ = ["SEARCHES", "SHORT_ROW", "is_held_in_blocks"]

SEARCHES = ("topk", "kthvalue")
"""Functions that look for the largest keys of a row."""

SHORT_ROW = 4096.0
"""Rows up to this are sorted where a block of threads holds them, and move once."""

_ROW_SORTS = ("sort", "argsort", "msort")


def is_held_in_blocks(sizes: GraphSizes) -> npt.NDArray[np.bool_]:
    """Sorts that take no memory beside their results: of short rows, and searches for the largest keys of any.

    Shapes:
        Result: [n_nodes].
    """
    row = sizes.dimension(sizes.inputs(np.arange(len(sizes.nodes)), 0), -1)
    is_short = (row[:, 0] <= SHORT_ROW) & np.all(row[:, 1:] == 0.0, axis=1)
    result: npt.NDArray[np.bool_] = sizes.has_function(*SEARCHES) | (sizes.has_function(*_ROW_SORTS) & is_short)
    return result
