from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dippm.errors import UnsupportedError
from dippm.graph import Graph, OpKind
from dippm.predictors.answerable import check_answerable, name_unsupported, warn_of_batch


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    builder.node(OpKind.RELU, [builder.input(builder.N, 4)], builder.N, 4)
    return builder.graph()


def test_an_open_batch_is_any(graph: Graph) -> None:
    check_answerable(graph, [1, 8, 1000])


def test_a_fixed_batch_is_itself_alone(graph: Graph) -> None:
    fixed = replace(graph, fixed_batch=8, fixed_batch_reason="It was traced so.")
    check_answerable(fixed, [8])
    with pytest.raises(UnsupportedError, match=r"batch 8 only: It was traced so. Got \[1, 16\]") as caught:
        check_answerable(fixed, [16, 8, 1, 16])
    assert caught.value.code == "graph.fixed_batch"


def test_views_are_no_work(builder: Any) -> None:
    x = builder.input(builder.N, 4)
    builder.node(OpKind.VIEW, [x], builder.N, 2, 2, alias_of=x)
    with pytest.raises(UnsupportedError, match="runs no operator") as caught:
        check_answerable(builder.graph(), [1])
    assert caught.value.code == "graph.empty"


def test_operators_without_a_rule_are_named_with_their_counts(graph: Graph) -> None:
    assert name_unsupported(graph) == ""
    assert name_unsupported(replace(graph, unsupported_ops={"b.Two": 2, "a.One": 1})) == "a.One (1), b.Two (2)"


def test_a_batch_beyond_those_that_were_read_is_said(graph: Graph) -> None:
    read = replace(graph, proved_batch=64)
    (warning,) = warn_of_batch(read, 65)
    assert "up to 64" in warning
    assert "batch_hint=65" in warning
    for held in (graph, replace(graph, fixed_batch=65)):
        assert warn_of_batch(held, 65) == ()
    assert warn_of_batch(read, 64) == ()
