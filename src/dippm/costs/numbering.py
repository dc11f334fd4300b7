"""Numbers for what is alike: equal for equal rows, in the order in which they first appear."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from itertools import count, pairwise

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray

__all__ = ["number_rows", "number_stretches"]


def number_rows(rows: npt.NDArray[np.generic]) -> IndexArray:
    """Numbers that are equal for rows of equal bytes.

    Shapes:
        rows: [n, D], D at least 1; result: [n].
    """
    as_bytes = np.dtype((np.void, rows.itemsize * rows.shape[1]))
    return _number(np.ascontiguousarray(rows).view(as_bytes).ravel().tolist())


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


def _number(pieces: Sequence[Hashable]) -> IndexArray:
    numbers: defaultdict[Hashable, int] = defaultdict(count().__next__)
    return np.fromiter(map(numbers.__getitem__, pieces), dtype=np.int64, count=len(pieces))
