"""What the caching allocator is asked for in one forward pass or training step, and what it then holds."""

from __future__ import annotations

from collections.abc import Sequence
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
        asked: Of each event the number of a piece, from 1, where it is taken; its negative where it is given back; 0
            for both at once; and the piece whose size it has.
        is_left: Whether what counts is what stays after the run once cached memory was given back.

    Shapes:
        asked: [2, n].
    """

    asked: IndexArray
    is_left: bool = False

    @property
    def events(self) -> IndexArray:
        result: IndexArray = self.asked[0]
        return result

    @property
    def sized_as(self) -> IndexArray:
        result: IndexArray = self.asked[1]
        return result

    def part(self, chosen: npt.NDArray[np.bool_]) -> _Run:
        return _Run(asked=self.asked.compress(chosen, axis=1))

    @classmethod
    def joined(cls, runs: Sequence[_Run], *, is_left: bool = False) -> _Run:
        return cls(asked=np.concatenate([run.asked for run in runs], axis=1), is_left=is_left)

    def given_back(self) -> _Run:
        """Events that give back what is taken after the run, in the order in which it was taken."""
        piece, at = np.abs(self.events), np.arange(len(self.events))
        last = np.zeros(piece.max(initial=0) + 1, dtype=np.int64)
        last[piece] = at  # of several the last one stays
        alive = at[(self.events > 0) & (last[piece] == at)]
        return _Run(asked=np.array([-self.events[alive], self.sized_as[alive]]))


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
        requests = timeline.requests
        if without:
            is_left_out = np.zeros(len(Purpose), dtype=np.bool_)
            is_left_out[list(without)] = True
            requests = requests.without(is_left_out[timeline.purpose])
        once = np.array([requests.event, requests.piece])
        # Weights and inputs are there first.
        first = np.concatenate([timeline.weights, timeline.inputs])
        begin = _Run(asked=np.array([first + 1, np.concatenate([timeline.weights, timeline.room])]))
        # Pieces that no node names stand behind all others.
        workspaces, pieces = workspaces or Workspaces(), len(timeline.purpose)
        calls, kept = timeline.first_calls, (workspaces.blas_bytes, workspaces.lt_bytes, workspaces.blas_bytes)
        more = np.zeros((len(kept) + 1, timeline.bytes_of.shape[1]))
        more[:, 0] = *kept, _GENERATOR_BYTES
        self._bytes_of = np.concatenate([timeline.bytes_of, more])
        self._pieces = len(self._bytes_of)
        called = [call if has_bytes else -1 for call, has_bytes in zip(calls.in_order, kept, strict=True)]
        with_workspaces = _Run(asked=_with_first_calls(once, requests.node, called, first_piece=pieces))
        if not is_captured:
            runs = [begin, with_workspaces]
            if requests.keeps_first:
                # What is there from the start can be given back but once.
                given_back = np.array([-requests.event[requests.left], requests.piece[requests.left]])
                runs += [_Run(asked=given_back), _Run(asked=once[:, requests.last :])]
            self._runs = [_Run.joined(runs)]
            return
        generator = _Run(asked=np.array([[self._pieces], [self._pieces - 1]]))
        own = with_workspaces.part(~np.isin(np.abs(with_workspaces.events), begin.events))
        warm_up = _Run.joined([own, own.part(own.events <= pieces).given_back()], is_left=True)
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
                own = peak_blocks(run.events, sizes.take(run.sized_as), self._pieces, capacity - held, before_restart)
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


def _with_first_calls(once: IndexArray, node: IndexArray, called: Sequence[int], *, first_piece: int) -> IndexArray:
    """Requests with those of libraries for their workspaces, each before the node that calls one first.

    Args:
        once: The requests, as :attr:`_Run.asked`.
        node: Node of each.
        called: First node to call each library, -1 where none does.
        first_piece: Piece of the first library's workspace.

    Shapes:
        once: [2, n]; node: [n]; result: [2, n + calls].
    """
    # Where a step begins, nodes begin anew.
    places = np.searchsorted(np.maximum.accumulate(node), called).tolist()
    parts, done = [], 0
    for place, call, piece in sorted(zip(places, called, range(first_piece, first_piece + len(called)), strict=True)):
        if call >= 0:
            parts += [once[:, done:place], np.array([[piece + 1], [piece]])]
            done = place
    return np.concatenate([*parts, once[:, done:]], axis=1)
