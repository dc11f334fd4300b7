"""What the caching allocator is asked for in one forward pass or training step, and what it then holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs import allocator
from dippm.costs.allocator import BLOCK_BYTES
from dippm.costs.edges import IndexArray
from dippm.costs.polynomial import FloatArray, evaluate
from dippm.costs.timeline import MemoryTimeline, Purpose
from dippm.errors import UnsupportedError

try:
    from dippm.costs import _replay
except ImportError:  # there was no compiler
    peak_blocks = allocator.peak_blocks
else:
    peak_blocks = _replay.peak_blocks

__all__ = ["Replay", "Workspaces"]

# Beyond any device; keeps absurd sizes within whole numbers.
_MOST_BYTES = 2.0**60
# What a device without limit has: as far as addresses of 64 bits reach.
_UNLIMITED_BLOCKS = 2**62
_KEPT_ANSWERS = 4096
# Seed and offset of a CUDA graph's generator of random numbers, which lie on the stream that captures.
_GENERATOR_BYTES = 16.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Workspaces:
    """What libraries of matrix products take from the allocator at their first call, and keep.

    Args:
        blas_bytes: Of cuBLAS, once for each thread and stream.
        lt_bytes: Of cuBLASLt, likewise.
    """

    blas_bytes: int = 0
    lt_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Run:
    """What one pool of memory is asked for.

    Args:
        events: The number of a piece, from 1, where it is taken; its negative where it is given back; 0 for both at
            once.
        places: Where the size of each event's piece stands.
        is_left: Whether what counts is what stays after the run once cached memory was given back.

    Shapes:
        events, places: [n].
    """

    events: IndexArray
    places: IndexArray
    is_left: bool = False

    def part(self, chosen: npt.NDArray[np.bool_]) -> _Run:
        return _Run(events=self.events[chosen], places=self.places[chosen])

    def then(self, *others: _Run, is_left: bool = False) -> _Run:
        runs = (self, *others)
        return _Run(
            events=np.concatenate([run.events for run in runs]),
            places=np.concatenate([run.places for run in runs]),
            is_left=is_left,
        )

    def given_back(self) -> _Run:
        """Events that give back what is taken after the run, in the order in which it was taken."""
        piece, at = np.abs(self.events), np.arange(len(self.events))
        last = np.zeros(piece.max(initial=0) + 1, dtype=np.int64)
        np.maximum.at(last, piece, at)
        alive = at[(self.events > 0) & (last[piece] == at)]
        return _Run(events=-self.events[alive], places=self.places[alive])


class Replay:
    """The events of one timeline, for any batch size and capacity.

    What the allocator held is kept by batch and capacity: the next device asks for the same, and so does whoever asks
    again. A timeline is followed to its end and its last step once more, with what libraries and the cache hold then.

    Args:
        timeline: The model's memory events.
        without: Kinds of memory that are left out.
        is_captured: Whether the pass is a captured CUDA graph. It has a pool of its own, which shares no segment with
            the weights and inputs that were there before, and never gives inputs back. Before the capture it runs on
            another stream, whose cached memory is given back then.
        workspaces: Of the libraries that it calls.
    """

    def __init__(
        self,
        timeline: MemoryTimeline,
        without: frozenset[Purpose],
        *,
        is_captured: bool = False,
        workspaces: Workspaces | None = None,
    ) -> None:
        self._known: dict[tuple[float, int | None], int] = {}
        is_left_out = np.zeros(len(Purpose), dtype=np.bool_)
        is_left_out[list(without)] = True
        is_taken = timeline.is_taken & ~is_left_out[timeline.purpose]
        is_event = (timeline.event_sign != 0) & is_taken[timeline.event_piece]
        piece, node = timeline.event_piece[is_event], timeline.event_node[is_event]
        # An event is the number of its piece, from 1, negative where the piece is given back.
        events = (piece + 1) * timeline.event_sign[is_event]
        # Taken and given back with nothing between, as scratch memory is: one event instead of two.
        is_end = np.zeros(len(events), dtype=np.bool_)
        is_end[1:] = (events[1:] == -events[:-1]) & (events[:-1] > 0)
        events[:-1][is_end[1:]] = 0
        events, piece, node = events[~is_end], piece[~is_end], node[~is_end]
        # Weights and inputs are there first.
        first = np.concatenate([timeline.weights, timeline.inputs])
        is_taken[timeline.weights] = True
        bytes_of = timeline.bytes_of.take(np.concatenate([timeline.weights, timeline.room, piece]), axis=0)
        bytes_of[np.flatnonzero(~is_taken[first])] = 0.0
        # Pieces that no node names stand behind all others.
        workspaces = workspaces or Workspaces()
        calls, kept = timeline.first_calls, (workspaces.blas_bytes, workspaces.lt_bytes, workspaces.blas_bytes)
        more = np.zeros((len(kept) + 1, bytes_of.shape[1]))
        more[:, 0] = *kept, _GENERATOR_BYTES
        self._bytes_of = np.concatenate([bytes_of, more])
        self._pieces = len(timeline.purpose) + len(more)
        begin = _Run(events=first + 1, places=np.arange(len(first)))
        once = _Run(events=events, places=len(first) + np.arange(len(events)))
        called = np.array([calls.blas, calls.lt, calls.backward])
        number = np.flatnonzero((called >= 0) & (np.array(kept) > 0))
        before = np.array([np.append(node >= call, True).argmax() for call in called[number]], dtype=np.int64)
        with_workspaces = _Run(
            events=np.insert(once.events, before, len(timeline.purpose) + 1 + number),
            places=np.insert(once.places, before, len(bytes_of) + number),
        )
        generator = _Run(events=np.array([self._pieces]), places=np.array([len(self._bytes_of) - 1]))
        if not is_captured:
            # Where a step begins, nodes begin anew. What is there from the start can be given back but once.
            last = once.part(np.cumsum(np.diff(node, prepend=node[:1]) < 0) == timeline.steps - 1)
            is_repeated = not np.isin(-once.events, begin.events).any()
            self._runs = [begin.then(with_workspaces, *((last.given_back(), last) if is_repeated else ()))]
            return
        own = with_workspaces.part(~np.isin(np.abs(with_workspaces.events), begin.events))
        warm_up = own.then(own.part(own.events <= len(timeline.purpose)).given_back(), is_left=True)
        self._runs = [begin, generator, own, warm_up]

    def reserve(self, batches: FloatArray, capacity_bytes: int | None) -> npt.NDArray[np.int64]:
        """Most bytes held at each batch size, -1 where the capacity does not suffice, [B].

        Raises:
            UnsupportedError: ``graph.too_large`` where no 64 bits can count them.
        """
        return np.array([self._held(batch, capacity_bytes) for batch in batches.tolist()], dtype=np.int64)

    def _held(self, batch: float, capacity_bytes: int | None) -> int:
        held = self._known.get((batch, capacity_bytes))
        if held is None:
            held = self._follow(batch, capacity_bytes)
            if len(self._known) >= _KEPT_ANSWERS:
                self._known = {}
            self._known[batch, capacity_bytes] = held
        return held

    def _follow(self, batch: float, capacity_bytes: int | None) -> int:
        (piece_bytes,) = evaluate(self._bytes_of, np.array([batch]))
        sizes = np.ceil(np.minimum(piece_bytes, _MOST_BYTES) / BLOCK_BYTES).astype(np.int64)
        capacity = _UNLIMITED_BLOCKS if capacity_bytes is None else capacity_bytes // BLOCK_BYTES
        held = 0
        try:
            for run in self._runs:
                before_restart = len(run.events) if run.is_left else -1
                own = peak_blocks(run.events, sizes.take(run.places), self._pieces, capacity - held, before_restart)
                if own < 0:
                    return -1
                held += own
        except OverflowError as exc:
            raise UnsupportedError(
                f"The model needs more memory at batch {batch:.0f} than 64 bits can count.",
                code="graph.too_large",
                cure="Give a smaller batch or smaller inputs.",
            ) from exc
        return held * BLOCK_BYTES
