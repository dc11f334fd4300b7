"""Which graph serves which batches; what is predicted by them is tested in test_prediction.py, test_sweep_rows.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dippm.api.batched_reading import read_for_batches, with_way_told
from dippm.errors import DippmError
from dippm.graph import Graph, OpKind


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    builder.node(OpKind.RELU, [builder.input(builder.N, 8)], builder.N, 8)
    return builder.graph()


def served(read: Callable[[int], Graph], batches: tuple[int, ...]) -> list[tuple[object, tuple[int, ...]]]:
    """Of each graph the batch that it holds for, or why there is none, and the batches that it is for."""
    return [
        (each.fixed_batch if isinstance(each, Graph) else str(each), tuple(own))
        for each, own in read_for_batches(read, batches)
    ]


def test_one_graph_serves_all_where_it_was_proved_at_the_largest(graph: Graph) -> None:
    asked = []
    assert served(lambda batch: asked.append(batch) or graph, (1, 9, 4)) == [(None, (1, 9, 4))]  # type: ignore[func-returns-value]
    assert asked == [9]


def test_each_batch_gets_its_own_where_none_serves_all(graph: Graph) -> None:
    read = {9: replace(graph, fixed_batch=9), 4: replace(graph, fixed_batch=4), 1: graph}
    assert served(read.__getitem__, (1, 9, 4)) == [(None, (1,)), (9, (9,)), (4, (4,))]


def test_batches_that_are_too_small_for_the_others_graph_get_their_own(graph: Graph) -> None:
    read = {8: replace(graph, smallest_batch=2), 1: replace(graph, fixed_batch=1)}
    assert served(read.__getitem__, (8, 1)) == [(None, (8,)), (1, (1,))]
    assert served(read.__getitem__, (8, 2)) == [(None, (8, 2))]


def test_what_a_file_fixes_comes_once_for_all_that_are_left(graph: Graph) -> None:
    asked = []
    assert served(lambda batch: asked.append(batch) or replace(graph, fixed_batch=2), (2, 3, 4)) == [  # type: ignore[func-returns-value]
        (2, (2,)),
        (2, (3, 4)),
    ]
    assert asked == [4, 3]


def test_an_error_of_one_batch_comes_in_place_of_its_graph(graph: Graph) -> None:
    def read(batch: int) -> Graph:
        if batch == 1:
            raise DippmError("too few", code="test")
        return replace(graph, fixed_batch=batch)

    assert served(read, (1, 2)) == [("too few", (1,)), (2, (2,))]
    with pytest.raises(DippmError, match="too few"):
        served(read, (1,))


def test_a_batch_at_which_the_model_goes_another_way_is_read_by_itself(graph: Graph) -> None:
    asked = []

    def read(batch: int) -> Graph:
        asked.append(batch)
        return replace(graph, fixed_batch=batch) if batch % 2 else replace(graph, other_batches=(1, 3))

    assert served(read, (8, 3, 2)) == [(None, (8,)), (3, (3,)), (None, (2,))]
    assert served(read, (8, 2)) == [(None, (8, 2))]
    assert asked == [8, 3, 8]


def test_a_graph_that_was_read_warns_of_batches_at_which_its_model_may_go_another_way(graph: Graph) -> None:
    held = replace(graph, other_batches=(1,), known_batches=(2, 3, 64))
    found = {own: each.warnings for each, own in read_for_batches(lambda _: held, (1, 3, 5)) if isinstance(each, Graph)}
    assert [len(told) for told in found.values()] == [1, 0, 1]
    assert "and at 1 it goes another way or does not run" in found[(1,)][0]
    assert "and at 5 its way was not looked at" in found[(5,)][0]
    assert with_way_told(held, 3) is held
