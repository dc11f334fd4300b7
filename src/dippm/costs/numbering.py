"""Numbers for what is alike: equal for equal rows, in the order in which they first appear."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray

__all__ = ["number_rows", "number_stretches"]


def number_rows(rows: npt.NDArray[np.generic]) -> IndexArray:
    """Numbers that are equal for rows of equal bytes.

    Shapes:
        rows: [n, D], D at least 1; result: [n].
    """
    content, width = rows.tobytes(), rows.itemsize * rows.shape[1]
    return _number([content[start : start + width] for start in range(0, len(content), width)])


def number_stretches(values: IndexArray, stops: IndexArray) -> IndexArray:
    """Numbers that are equal for equal stretches.

    Args:
        values: All stretches, one after the other.
        stops: Behind the last value of each.

    Shapes:
        values: [m]; stops and result: [n].
    """
    content = values.tobytes()
    bounds = [0, *(stops * values.itemsize).tolist()]
    return _number([content[start:stop] for start, stop in pairwise(bounds)])


def _number(pieces: Sequence[bytes]) -> IndexArray:
    numbers = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    return np.array([numbers[piece] for piece in pieces], dtype=np.int64)
