"""Finds the slices that hold for small batches alone.

``x[:64]`` takes all of a batch of 2, of 3 and of 64, and less of every larger one: no reading at small batches tells it
from ``x[:]``. Its bounds do. A slice follows the batch where none of its bounds reaches beyond the dimension that it is
taken from, or where that is so at every batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dippm.graph.passes.unify_batches import batch_dependent

__all__ = ["SliceBounds", "SlicePlace", "check_slices"]

_ENDLESS = 10_000_000  # Bounds as large as this mean the end of a dimension; no batch comes near them.

SlicePlace = tuple[int, int]
"""Number of the value that a slice makes, and the axis along which it does."""


class SliceBounds(NamedTuple):
    """One slice along one axis, at one batch.

    Args:
        name: The value that it makes.
        size: Size of the dimension that it is taken from.
        start: Its first bound as the operator has it, negative where it is counted from the end.
        stop: Its second bound.
    """

    name: str
    size: int
    start: int
    stop: int


def check_slices(
    first: Mapping[SlicePlace, SliceBounds],
    second: Mapping[SlicePlace, SliceBounds],
    *,
    batches: tuple[int, int],
    smallest: int,
) -> None:
    """Refuse slices whose size is no straight line over the batch.

    Args:
        first: The slices of the model read at ``batches[0]``.
        second: Those of the same model read at ``batches[1]``, which is the next larger batch.
        batches: The two batch sizes.
        smallest: The smallest batch that the lines must hold for, at most ``batches[0]``.

    Raises:
        UnsupportedError: ``graph.batch_dependent``.
    """
    for place, at_first in first.items():
        at_second = second.get(place)
        if at_second is None or at_first == at_second:
            continue
        sizes = at_first.size, at_second.size
        least = sizes[0] - (batches[0] - smallest) * (sizes[1] - sizes[0])
        for bounds in ((at_first.start, at_second.start), (at_first.stop, at_second.stop)):
            is_beyond = _is_beyond(bounds[0], sizes[0])
            is_number = bounds[0] == bounds[1] and abs(bounds[0]) < _ENDLESS
            if is_beyond is not _is_beyond(bounds[1], sizes[1]) or (
                # A number that lies beyond a growing dimension will not do so for ever.
                is_number and sizes[0] != sizes[1] and _is_beyond(bounds[0], least)
            ):
                raise batch_dependent(
                    f"the slice '{at_first.name[:200]}' reaches beyond its dimension at some batches and not at others "
                    f"({at_first.start}:{at_first.stop} of {sizes[0]} at batch {batches[0]}, "
                    f"{at_second.start}:{at_second.stop} of {sizes[1]} at batch {batches[1]})"
                )


def _is_beyond(bound: int, size: int) -> bool:
    return not -size <= bound <= size
