from __future__ import annotations

import pytest

from dippm.graph import Dim, OpKind
from dippm.graph.passes.drop_neutral_arithmetic import drop_neutral_arithmetic

N = Dim(1, 0)


@pytest.mark.parametrize(
    ("kind", "scalar"), [(OpKind.ADD, 0.0), (OpKind.SUB, 0.0), (OpKind.MUL, 1.0), (OpKind.DIV, 1.0)]
)
def test_what_changes_nothing_is_dropped(sketch, after, kind, scalar) -> None:
    sketch.input("x", N, 4).node("same", kind, "x", scalar=scalar).node("y", OpKind.RELU, "same")
    assert after(drop_neutral_arithmetic, sketch.graph("y")) == [("relu", "x")]


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        (OpKind.ADD, {"scalar": 1.0}),
        (OpKind.MUL, {"scalar": 0.0}),
        (OpKind.SUB, {"scalar": 0.0, "scalar_first": True}),
        (OpKind.DIV, {"scalar": 1.0, "scalar_first": True}),
        (OpKind.RELU, {}),
    ],
)
def test_what_changes_something_stays(sketch, after, kind, attributes) -> None:
    sketch.input("x", N, 4).node("other", kind, "x", **attributes).node("y", OpKind.RELU, "other")
    assert [found for found, _ in after(drop_neutral_arithmetic, sketch.graph("y"))] == [kind.value, "relu"]


def test_several_in_a_row_and_several_readers(sketch, after) -> None:
    sketch.input("x", N, 4).node("a", OpKind.MUL, "x", scalar=1.0).node("b", OpKind.ADD, "a", scalar=0.0)
    sketch.node("y", OpKind.MUL, "b a").node("z", OpKind.RELU, "b")
    assert after(drop_neutral_arithmetic, sketch.graph("y", "z")) == [("mul", "x x"), ("relu", "x")]


def test_an_output_of_the_graph_stays(sketch, after) -> None:
    sketch.input("x", N, 4).node("y", OpKind.ADD, "x", scalar=0.0)
    assert after(drop_neutral_arithmetic, sketch.graph("y")) == [("add", "x")]
