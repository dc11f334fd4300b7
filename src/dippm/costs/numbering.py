"""Numbers for what is alike: equal for equal rows, in the order in which they first appear."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from itertools import count, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    from dippm.costs import _numbering
except ImportError:  # there was no compiler
    _IS_COMPILED = False
else:
    _IS_COMPILED = True

__all__ = ["IndexArray", "is_first", "number_around", "number_rows", "number_values"]

IndexArray = npt.NDArray[np.int64]


def number_rows(rows: npt.NDArray[np.generic]) -> IndexArray:
    """Numbers that are equal for rows of equal bytes.

    Shapes:
        rows: [n, D], D at least 1; result: [n].
    """
    return _number(rows, np.arange(1, len(rows) + 1, dtype=np.int64) * (rows.itemsize * rows.shape[1]))


def number_values(values: IndexArray) -> IndexArray:
    """Numbers that are equal for equal values.

    Shapes:
        values and result: [n].
    """
    return number_rows(values[:, None])


def is_first(numbers: IndexArray) -> npt.NDArray[np.bool_]:
    """Which of some numbers, that follow the order in which they first appear, do so there, [n]."""
    result = np.ones(len(numbers), dtype=np.bool_)
    result[1:] = numbers[1:] > np.maximum.accumulate(numbers)[:-1]
    return result


def number_around(colours: IndexArray, source: IndexArray, target: IndexArray) -> IndexArray:
    """Numbers that are equal for nodes of equal colour whose sources and whose targets are of equal colours.

    Args:
        colours: Colour of each node, below their number.
        source: Where each edge between two nodes begins.
        target: Where it ends.

    Shapes:
        colours and result: [n]; source, target: [E].
    """
    if _IS_COMPILED:
        numbers = np.empty(len(colours), dtype=np.int64)
        _numbering.number_around(
            np.ascontiguousarray(colours), np.ascontiguousarray(source), np.ascontiguousarray(target), numbers
        )
        return numbers
    count = len(colours)
    # Of each node its own colour, then those of its sources, then those of its targets.
    node = np.concatenate([np.arange(count), target, source])
    told = np.concatenate([colours, count + colours[source], 2 * count + colours[target]])
    # One number sorts faster than two.
    words = np.sort(node * (3 * count) + told) % (3 * count)
    return _number(words, np.cumsum(np.bincount(node, minlength=count)) * words.itemsize)


def _number(content: npt.NDArray[Any], stops: IndexArray) -> IndexArray:
    """Numbers that are equal for equal pieces of an array's bytes.

    Args:
        content: The array.
        stops: Behind the last byte of each piece, [n].
    """
    content, numbers = np.ascontiguousarray(content), np.empty(len(stops), dtype=np.int64)
    if _IS_COMPILED:
        _numbering.number(content, stops, numbers)
    else:
        _fill(content, stops, numbers)
    return numbers


def _fill(content: npt.NDArray[Any], stops: IndexArray, numbers: IndexArray) -> None:
    """What ``_numbering.c`` does, in Python."""
    known: defaultdict[Hashable, int] = defaultdict(count().__next__)
    pieces = content.tobytes()
    numbers[:] = [known[pieces[start:stop]] for start, stop in pairwise([0, *stops.tolist()])]
