"""What the allocator is asked for, by hand."""

from __future__ import annotations

import numpy as np

from dippm.costs.memory_events import Events, Requests, Starts, cut


def _events(*rows: tuple[int, int, int]) -> Events:
    node, piece, sign = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return Events(node=node, piece=piece, sign=sign)


def _requests(
    events: Events, *, event: list[int], piece: list[int], node: list[int], first: list[int]
) -> list[Requests]:
    starts = Starts(event=np.array(event), piece=np.array(piece), node=np.array(node))
    is_first = np.zeros(piece[-1], dtype=np.bool_)
    is_first[first] = True
    is_taken = np.ones(piece[-1], dtype=np.bool_)
    return Requests.of_each(events, starts, last_start=starts.event[:-1], is_taken=is_taken, is_first=is_first)


def test_graphs_have_as_many_steps_as_each_takes() -> None:
    events = _events((0, 0, 0), (0, 5, 1), (1, 0, 0), (2, 0, 0), (2, 6, 1))
    twice = events.in_steps([2, 1], np.array([0, 2, 3]))
    assert twice.node.tolist() == [0, 0, 1, 0, 0, 1, 2, 2]
    assert twice.piece.tolist() == [0, 5, 0, 0, 5, 0, 0, 6]
    assert events.in_steps([1, 1], np.array([0, 2, 3])) is events


def test_what_is_given_back_at_once_is_one_request_and_what_is_not_is_left() -> None:
    events = _events((0, 0, 0), (0, 1, 1), (0, 2, 1), (0, 2, -1), (1, 0, 0), (1, 3, 1), (1, 1, -1))
    (found,) = _requests(events, event=[0, 7], piece=[0, 4], node=[0, 2], first=[0])
    assert found.event.tolist() == [2, 0, 4, -2]
    assert found.piece.tolist() == [1, 2, 3, 1]
    assert found.node.tolist() == [0, 0, 1, 1]
    assert found.left.tolist() == [2]
    assert (found.last, found.keeps_first) == (0, True)


def test_pieces_and_nodes_are_numbered_by_graph() -> None:
    events = _events((0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 3, 1), (1, 2, -1))
    first, second = _requests(events, event=[0, 2, 5], piece=[0, 2, 4], node=[0, 1, 2], first=[0, 2])
    assert (first.event.tolist(), first.node.tolist(), first.keeps_first) == ([2], [0], True)
    assert (second.event.tolist(), second.node.tolist(), second.keeps_first) == ([2, -1], [0, 0], False)
    assert first.left.tolist() == second.left.tolist() == [0]


def test_pieces_are_left_out_with_all_that_happens_to_them() -> None:
    events = _events((0, 0, 0), (0, 1, 1), (0, 2, 1), (1, 0, 0), (1, 3, 1), (1, 2, -1))
    (found,) = _requests(events, event=[0, 6], piece=[0, 4], node=[0, 2], first=[0])
    assert found.left.tolist() == [0, 2]
    less = found.without(np.array([False, True, False, False]))
    assert less.event.tolist() == [3, 4, -3]
    assert less.left.tolist() == [1]


def test_stretches_end_where_the_next_one_begins() -> None:
    assert [part.tolist() for part in cut(np.arange(4), np.array([0, 1, 1, 4]))] == [[0], [], [1, 2, 3]]
