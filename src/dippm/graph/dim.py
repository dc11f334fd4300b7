"""A tensor dimension that depends linearly on the batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Dim", "Shape", "changed_axis", "fixed_shape"]


class Dim(NamedTuple):
    """One dimension of a tensor as a function of the batch size N: ``per_sample * N + fixed``.

    A tuple of two integers, so that shapes stay cheap to build, hash and stack into arrays.

    Args:
        per_sample: Growth with each sample of the batch, at least 0.
        fixed: The part that does not depend on the batch.
    """

    per_sample: int
    fixed: int

    def at(self, batch: int) -> int:
        """The dimension's size at a batch size."""
        return self.per_sample * batch + self.fixed

    def __str__(self) -> str:
        if self.per_sample == 0:
            return str(self.fixed)
        symbol = "N" if self.per_sample == 1 else f"{self.per_sample}N"
        return symbol if self.fixed == 0 else f"{symbol}{self.fixed:+d}"


Shape = tuple[Dim, ...]


def fixed_shape(*sizes: int) -> Shape:
    """A shape that does not depend on the batch."""
    return tuple(Dim(0, size) for size in sizes)


def changed_axis(before: Sequence[object], after: Sequence[object]) -> int | None:
    """The one dimension in which shapes of one rank differ; None where there are none or several, or the ranks do."""
    if len(before) != len(after):
        return None
    changed = [axis for axis, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    return changed[0] if len(changed) == 1 else None
