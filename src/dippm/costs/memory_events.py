"""What happens to pieces of device memory, in order, and what of that the caching allocator is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray

__all__ = ["Events", "Requests", "Starts", "cut"]

BoolArray = npt.NDArray[np.bool_]
_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Events:
    """Pieces that are taken and given back at the nodes of one or several graphs, and marks that begin nodes.

    Args:
        node: Node of each event.
        piece: Its piece.
        sign: 1 where it is taken, -1 where it is given back, 0 for a mark.

    Shapes:
        All [E].
    """

    node: IndexArray
    piece: IndexArray
    sign: IndexArray

    @classmethod
    def in_order(cls, stages: Sequence[tuple[IndexArray, IndexArray, int]]) -> Events:
        """Events of one stage of each node after the other: nodes, pieces and sign of each stage."""
        nodes, pieces, signs = zip(*stages, strict=True)
        node = np.concatenate(nodes)
        stage = np.repeat(np.arange(len(stages)), [len(own) for own in nodes])
        order = np.argsort(node * len(stages) + stage, kind="stable")
        return cls(
            node=node.take(order),
            piece=np.concatenate(pieces).take(order),
            sign=np.array(signs).take(stage.take(order)),
        )

    def in_steps(self, steps: Sequence[int], node_start: IndexArray) -> Events:
        """The events of each graph as often as it has steps.

        Args:
            steps: Steps of each graph.
            node_start: First node of each graph, and behind the last one.
        """
        if max(steps, default=1) == 1:
            return self
        spans = pairwise(np.searchsorted(self.node, node_start).tolist())
        order = np.concatenate([np.tile(np.arange(*span), own) for span, own in zip(spans, steps, strict=True)])
        return self._take(order)

    def without_idle(self, is_there: BoolArray) -> Events:
        """Without those that take a tensor's piece that is there, or give back one that is not.

        Args:
            is_there: Whether each tensor's piece, which are the first ones, is there before the first event, [T].
        """
        asked = np.flatnonzero((self.piece < len(is_there)) & (self.sign != 0))
        asked = asked[np.argsort(self.piece[asked], kind="stable")]
        piece, sign = self.piece[asked], self.sign[asked]
        # Whatever an event asks for, after it that is so.
        before = np.where(is_there[piece], 1, -1)
        is_again = piece[1:] == piece[:-1]
        before[1:][is_again] = sign[:-1][is_again]
        is_kept = np.ones(len(self.piece), dtype=np.bool_)
        is_kept[asked] = sign != before
        return self._take(np.flatnonzero(is_kept))

    def _take(self, chosen: IndexArray) -> Events:
        return Events(node=self.node.take(chosen), piece=self.piece.take(chosen), sign=self.sign.take(chosen))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Starts:
    """Where each graph begins among the events, pieces and nodes of all, and behind the last one, [G + 1] each."""

    event: IndexArray
    piece: IndexArray
    node: IndexArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Requests:
    """What the caching allocator is asked for in all steps of a graph, but for what is there before.

    Args:
        event: The number of a piece, from 1, where it is taken; its negative where it is given back; 0 where it is
            given back at once, as scratch memory is.
        piece: Piece of each request.
        node: Node of each.
        last: First request of the last step.
        left: Those of the last step whose piece is there after it, in the order in which they were taken.
        keeps_first: Whether no step gives back what was there before.

    Shapes:
        event, piece, node: [n]; left: [k].
    """

    event: IndexArray
    piece: IndexArray
    node: IndexArray
    last: int
    left: IndexArray
    keeps_first: bool

    @classmethod
    def of_each(
        cls, events: Events, starts: Starts, *, last_start: IndexArray, is_taken: BoolArray, is_first: BoolArray
    ) -> list[Requests]:
        """Those of each graph, where pieces and nodes are numbered by graph.

        Args:
            events: The events of all steps of all graphs, graph after graph.
            starts: Where each graph begins.
            last_start: First event of the last step of each graph.
            is_taken: Whether each piece has any bytes.
            is_first: Whether it is there before the first step.

        Shapes:
            last_start: [G]; is_taken, is_first: [P].
        """
        asked = np.flatnonzero((events.sign != 0) & is_taken.take(events.piece))
        piece, sign = events.piece.take(asked), events.sign.take(asked)
        # Taken and given back with nothing between: one request instead of two.
        is_end = np.zeros(len(asked), dtype=np.bool_)
        is_end[1:] = (piece[1:] == piece[:-1]) & (sign[1:] < 0) & (sign[:-1] > 0)
        sign[:-1][is_end[1:]] = 0
        kept = np.flatnonzero(~is_end)
        asked, piece, sign = asked.take(kept), piece.take(kept), sign.take(kept)
        latest = np.zeros(len(is_taken), dtype=np.int64)
        latest[piece] = asked  # of several the last one stays
        start, last = np.searchsorted(asked, starts.event), np.searchsorted(asked, last_start)
        counts = np.diff(start)
        is_left = (sign > 0) & (latest.take(piece) == asked) & (asked >= np.repeat(last_start, counts))
        left = np.flatnonzero(is_left)
        left_start = np.searchsorted(left, start)
        owner = np.repeat(np.arange(len(counts)), counts)
        keeps_first = np.bincount(owner[(sign < 0) & is_first[piece]], minlength=len(counts)) == 0
        own_piece = piece - np.repeat(starts.piece[:-1], counts)
        own_node = events.node.take(asked) - np.repeat(starts.node[:-1], counts)
        event = (own_piece + 1) * sign
        return [
            cls(event=own_event, piece=own, node=asking, last=own_last, left=own_left, keeps_first=is_kept)
            for own_event, own, asking, own_last, own_left, is_kept in zip(
                cut(event, start),
                cut(own_piece, start),
                cut(own_node, start),
                (last - start[:-1]).tolist(),
                cut(left - np.repeat(start[:-1], np.diff(left_start)), left_start),
                keeps_first.tolist(),
                strict=True,
            )
        ]

    def without(self, is_left_out: BoolArray) -> Requests:
        """The same but for some pieces, [P]."""
        is_kept = ~is_left_out[self.piece]
        place: IndexArray = np.cumsum(is_kept) - is_kept
        return Requests(
            event=self.event[is_kept],
            piece=self.piece[is_kept],
            node=self.node[is_kept],
            last=int(np.count_nonzero(is_kept[: self.last])),
            left=place[self.left[is_kept[self.left]]],
            keeps_first=self.keeps_first,
        )


def cut(values: npt.NDArray[_Number], start: IndexArray) -> list[npt.NDArray[_Number]]:
    """The stretches of some values that begin at these places and end where the next one does."""
    return [values[first:stop] for first, stop in pairwise(start.tolist())]
