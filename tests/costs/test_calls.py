"""Sums over the nodes of calls that lie side by side."""

from __future__ import annotations

import numpy as np

from dippm.costs.calls import accumulate_by_call, for_nodes, sum_by_call


def test_a_sum_is_over_the_nodes_of_its_own_call() -> None:
    values, start = np.array([[1.0, 2.0, 4.0, 8.0], [0.0, 1.0, 0.0, 2.0]]), np.array([0, 1])
    assert sum_by_call(values, start).tolist() == [[1.0, 14.0], [0.0, 3.0]]
    assert sum_by_call(values, None).tolist() == [15.0, 3.0]


def test_a_call_has_the_same_sum_alone_and_beside_others() -> None:
    values = np.random.default_rng(0).lognormal(sigma=8.0, size=(3, 2000))
    start = np.array([0, 1, 700, 1337])
    together = sum_by_call(values, start)
    for place, own in enumerate(np.split(values, start[1:], axis=1)):
        assert together[:, place].tolist() == sum_by_call(own.copy(), np.array([0]))[:, 0].tolist()


def test_every_node_has_the_figure_of_its_call() -> None:
    figures = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert for_nodes(figures, np.array([0, 1]), count=3).tolist() == [[1.0, 2.0, 2.0], [3.0, 4.0, 4.0]]
    assert for_nodes(figures[0], None, count=3).tolist() == [[1.0], [2.0]]


def test_each_call_is_accumulated_from_its_own_start() -> None:
    values = np.array([[1.0, 2.0, 4.0, 3.0]])
    assert accumulate_by_call(np.add, values, np.array([0, 2])).tolist() == [[1.0, 3.0, 4.0, 7.0]]
    assert accumulate_by_call(np.maximum, values, np.array([0, 2])).tolist() == [[1.0, 2.0, 4.0, 4.0]]
    assert accumulate_by_call(np.add, values, None).tolist() == [[1.0, 3.0, 7.0, 10.0]]
