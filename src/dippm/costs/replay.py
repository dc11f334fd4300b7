"""What the caching allocator is asked for in one forward pass or training step, and what it then holds."""

from __future__ import annotations

from typing import Any

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

__all__ = ["Replay"]

# Beyond any device; keeps absurd sizes within whole numbers.
_MOST_BYTES = 2.0**60
# What a device without limit has: as far as addresses of 64 bits reach.
_UNLIMITED_BLOCKS = 2**62
_KEPT_ANSWERS = 4096
# Seed and offset of a CUDA graph's generator of random numbers, which lie on the stream that captures.
_GENERATOR_BYTES = 16.0

# Events, and where they stand among all, [n] each.
_Pool = tuple[IndexArray, IndexArray]


class Replay:
    """The events of one timeline, for any batch size and capacity.

    What the allocator held is kept by batch and capacity: the next device asks for the same, and so does whoever asks
    again.

    Args:
        timeline: The model's memory events.
        without: Kinds of memory that are left out.
        is_captured: Whether the pass is a captured CUDA graph. It has a pool of its own, which shares no segment with
            the weights and inputs that were there before, and never gives inputs back.
        lt_bytes: The workspace that cuBLASLt takes for good at its first call, on each stream.
    """

    def __init__(
        self,
        timeline: MemoryTimeline,
        without: frozenset[Purpose],
        *,
        is_captured: bool = False,
        lt_bytes: int = 0,
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
        # Weights and inputs are there first.
        first = np.concatenate([timeline.weights, timeline.inputs])
        in_order = np.concatenate([first + 1, events[~is_end]])
        is_taken[timeline.weights] = True
        sizes = np.concatenate([timeline.weights, timeline.room, piece[~is_end]])
        bytes_of = timeline.bytes_of.take(sizes, axis=0)
        bytes_of[np.flatnonzero(~is_taken[first])] = 0.0
        # Two pieces more, which stand behind all others: cuBLASLt's workspace, and the state of a graph's generator.
        more = np.zeros((2, bytes_of.shape[1]))
        more[:, 0] = lt_bytes, _GENERATOR_BYTES
        self._bytes_of, self._pieces = np.concatenate([bytes_of, more]), len(timeline.purpose) + 1
        workspace, generator = ((np.array([self._pieces]), np.array([len(bytes_of) + own])) for own in (0, 1))
        # Events of each pool of memory, and where they stand among all.
        place = np.arange(len(in_order))
        if not is_captured:
            # After the first pass the workspace is there from the start.
            self._pools = [_inserted((in_order, place), len(first), workspace) if lt_bytes else (in_order, place)]
            return
        is_before = place < len(first)
        is_own = ~is_before & ~np.isin(np.abs(in_order) - 1, first)
        start, own = ((in_order[part], place[part]) for part in (is_before, is_own))
        self._pools = [start, generator, own]
        if lt_bytes:
            earlier = np.append(node >= timeline.lt_node, True).argmax()
            taken = len(first) + np.count_nonzero(~is_end[:earlier])
            # Before a capture the model runs on another stream.
            self._pools = [start, generator, workspace, _inserted(own, np.searchsorted(own[1], taken), workspace)]

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


def _inserted(pool: _Pool, at: int | np.integer[Any], piece: _Pool) -> _Pool:
    """A pool that takes a piece before one of its events."""
    return np.insert(pool[0], at, piece[0]), np.insert(pool[1], at, piece[1])
