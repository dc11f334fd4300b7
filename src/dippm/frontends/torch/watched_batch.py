"""Sees by what batch sizes a module decides, without a reading at each of them.

A module is read at three batches, and one that goes another way at a fourth, as by ``if x.shape[0] == 1``, looks the
same at all of them. So in one of the readings the batch in the sizes of tensors notes what it is compared with.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from dippm.errors import DippmError, UnsupportedError
from dippm.graph import Graph
from dippm.graph.passes.unify_batches import check_batch

__all__ = ["BatchWatch", "settle_doubts"]

# More readings than these are not worth what they tell.
_MOST_DOUBTS = 3


class BatchWatch:
    """Notes what the batch is compared with while a module runs.

    Args:
        batch: The batch size that the module runs at.
        axes: Dimensions of tensors that may be the batch.
    """

    def __init__(self, batch: int, *, axes: Collection[int]) -> None:
        self._batch = batch
        self._axes = frozenset(axes)
        #: Sizes that the batch was said to be or not to be.
        self.equals: set[int] = set()
        #: Batches after which an order changes: 1 where it was compared with 1 by ``>`` or with 2 by ``>=``.
        self.lasts: set[int] = set()
        #: What it was divided by for the rest.
        self.divisors: set[int] = set()

    def watch_shape(self, shape: torch.Size) -> torch.Size:
        """The same shape, whose batch tells this watch what it is compared with."""
        if not any(axis < len(shape) and shape[axis] == self._batch for axis in self._axes):
            return shape
        return torch.Size([self.watch_size(size, axis) for axis, size in enumerate(shape)])

    def watch_size(self, size: int, axis: int) -> int:
        """The same for one size of a shape."""
        return _WatchedSize.of(size, self) if axis in self._axes and size == self._batch else size

    def note_length(self, shape: torch.Size) -> None:
        """Take note that a tensor's length was asked for, which Python gives as a plain number that tells nothing."""
        if 0 in self._axes and shape[:1] == (self._batch,):
            self.equals.add(1)

    def doubtful(self, read: Collection[int]) -> list[int]:
        """Batch sizes at which the module may go another way than at those that it was read at; few, in their order.

        What only changes between two of these, or beyond the largest, is not among them.
        """
        return sorted(self._found(read))[:_MOST_DOUBTS]

    def are_all(self, read: Collection[int]) -> bool:
        """Whether the module can go another way at those batches alone, as far as it was seen."""
        is_single = all(last < 2 or last >= min(read) for last in self.lasts)
        return is_single and not self.has_more_rests(read) and len(self._found(read)) <= _MOST_DOUBTS

    def has_more_rests(self, read: Collection[int]) -> bool:
        """Whether the module asked for the rest of its batch, and others than these leave other rests."""
        period = math.lcm(*(divisor for divisor in self.divisors if divisor > 1))
        return len({size % period for size in read}) < period

    def _found(self, read: Collection[int]) -> set[int]:
        smallest, largest = min(read), max(read)
        found = {size for size in self.equals if 1 <= size <= largest}
        found |= {last for last in self.lasts if 1 <= last < smallest}
        found |= {
            divisor for divisor in self.divisors if 1 < divisor <= largest and all(size % divisor for size in read)
        }
        return found.difference(read)


def settle_doubts(
    graph: Graph,
    doubts: Sequence[int],
    *,
    read: tuple[int, int, int],
    read_at: Callable[[int], Graph],
    batch_hint: int | None,
    are_all: bool,
    has_more_rests: bool,
) -> Graph:
    """Look whether a module goes another way at some batches than at those that it was read at.

    Args:
        graph: The module for every batch, as it was read at ``read``.
        doubts: The batches to look at. Where there are any or more rests, ``batch_hint`` is looked at too.
        read: The batches of the graph.
        read_at: Reads the module at one batch.
        batch_hint: The batch that is asked for, or the largest of these.
        are_all: Whether the module can go another way at ``doubts`` alone.
        has_more_rests: Whether it may go another way wherever a batch leaves a rest that none of ``read`` does.

    Returns:
        The graph, which says of itself at which batches the module goes another way or does not run, also in warnings
        where no batch is asked for; the module for ``batch_hint`` alone where it goes another way there.

    Raises:
        DippmError: The module cannot be read at ``batch_hint``.
    """
    told: dict[int, str] = {}
    at = f"batches {read[0]}, {read[1]} and {read[2]}"
    has_doubts = bool(doubts) or has_more_rests
    asked = [batch_hint] if has_doubts and batch_hint is not None and batch_hint not in (*read, *doubts) else []
    for batch in (*asked, *doubts):
        try:
            reading = read_at(batch)
        except DippmError as exc:
            if batch == batch_hint:
                raise
            why = str(exc).removesuffix(exc.cure or "").strip()
            told[batch] = f"The model was read at {at}, and cannot be at {batch}: {why}"
            continue
        try:
            check_batch(graph, reading, batch)
        except UnsupportedError:
            other = f"At batch {batch} the model goes another way than at {at}"
            if batch == batch_hint:
                return dataclasses.replace(reading, fixed_batch=batch, fixed_batch_reason=f"{other}.")
            told[batch] = f"{other}, whose way the figures are of: ask the model itself for a batch to have its own."
    if not told and not has_more_rests:
        return graph
    known = {*read, *asked, *doubts}.difference(told)
    return dataclasses.replace(
        graph,
        other_batches=tuple(sorted(told)),
        known_batches=() if are_all else tuple(sorted(known)),
        # Who names batches gets each that goes another way read by itself.
        warnings=(*graph.warnings, *(told.values() if batch_hint is None else ())),
    )


class _WatchedSize(int):
    """A batch size as PyTorch gives it, but for what its comparisons leave; sums and products of it are plain."""

    # A copy that a module makes of it tells nobody.
    _watch: BatchWatch | None = None

    @classmethod
    def of(cls, size: int, watch: BatchWatch) -> _WatchedSize:
        watched = cls(size)
        watched._watch = watch
        return watched

    def __eq__(self, other: object) -> bool:
        self._note("equals", other)
        return int.__eq__(self, other) if isinstance(other, int) else NotImplemented

    def __ne__(self, other: object) -> bool:
        self._note("equals", other)
        return int.__ne__(self, other) if isinstance(other, int) else NotImplemented

    __hash__ = int.__hash__

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)

    def __lt__(self, other: Any) -> Any:
        self._note("lasts", other, less=1)
        return int.__lt__(self, other)

    def __ge__(self, other: Any) -> Any:
        self._note("lasts", other, less=1)
        return int.__ge__(self, other)

    def __gt__(self, other: Any) -> Any:
        self._note("lasts", other)
        return int.__gt__(self, other)

    def __le__(self, other: Any) -> Any:
        self._note("lasts", other)
        return int.__le__(self, other)

    def __mod__(self, other: Any) -> Any:
        self._note("divisors", other)
        return int.__mod__(self, other)

    def _note(self, kind: str, other: object, *, less: int = 0) -> None:
        # Sizes that both follow the batch say nothing of which it is.
        if self._watch is not None and type(other) is int:
            getattr(self._watch, kind).add(other - less)
