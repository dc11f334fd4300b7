"""What the caching allocator is asked for in one forward pass or training step, and what it then holds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dippm.costs import allocator
from dippm.costs.allocator import BLOCK_BYTES
from dippm.costs.polynomial import FloatArray, evaluate
from dippm.costs.timeline import MemoryTimeline, Purpose
from dippm.errors import UnsupportedError

try:
    from dippm.costs import _replay
except ImportError:  # there was no compiler
    peak_blocks = allocator.peak_blocks
else:
    peak_blocks = _replay.peak_blocks

__all__ = ["Replay"]

# Beyond any device; keeps absurd sizes within whole numbers.
_MOST_BYTES = 2.0**60
# What a device without limit has: as far as addresses of 64 bits reach.
_UNLIMITED_BLOCKS = 2**62
_KEPT_ANSWERS = 4096


class Replay:
    """The events of one timeline, for any batch size and capacity.

    What the allocator held is kept by batch and capacity: the next device asks for the same, and so does whoever asks
    again.

    Args:
        timeline: The model's memory events.
        without: Kinds of memory that are left out.
        is_captured: Whether the pass is a captured CUDA graph. It has a pool of its own, which shares no segment with
            the weights and inputs that were there before, and never gives inputs back.
    """

    def __init__(self, timeline: MemoryTimeline, without: frozenset[Purpose], *, is_captured: bool = False) -> None:
        is_left_out = np.zeros(len(Purpose), dtype=np.bool_)
        is_left_out[list(without)] = True
        is_taken = timeline.is_taken & ~is_left_out[timeline.purpose]
        is_event = (timeline.event_sign != 0) & is_taken[timeline.event_piece]
        piece = timeline.event_piece[is_event]
        # An event is the number of its piece, from 1, negative where the piece is given back.
        events = (piece + 1) * timeline.event_sign[is_event]
        # Taken and given back with nothing between, as scratch memory is: one event instead of two.
        is_end = np.zeros(len(events), dtype=np.bool_)
        is_end[1:] = (events[1:] == -events[:-1]) & (events[:-1] > 0)
        events[:-1][is_end[1:]] = 0
        # Weights and inputs are there first.
        first = np.concatenate([timeline.weights, timeline.inputs])
        in_order = np.concatenate([first + 1, events[~is_end]])
        is_before = np.arange(len(in_order)) < len(first)
        # Events of each pool of memory, and where they stand among all.
        pools = [np.ones_like(is_before)]
        if is_captured:
            pools = [is_before, ~is_before & ~np.isin(np.abs(in_order) - 1, first)]
        self._pools = [(in_order[is_own], np.flatnonzero(is_own)) for is_own in pools]
        is_taken[timeline.weights] = True
        sizes = np.concatenate([timeline.weights, timeline.room, piece[~is_end]])
        self._bytes_of = timeline.bytes_of.take(sizes, axis=0)
        self._bytes_of[np.flatnonzero(~is_taken[first])] = 0.0
        self._pieces = len(timeline.purpose)
        self._known: dict[tuple[float, int | None], int] = {}

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
            for events, places in self._pools:
                own = peak_blocks(events, sizes.take(places), self._pieces, capacity - held)
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
