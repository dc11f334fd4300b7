from __future__ import annotations

import pytest

from dippm.graph import Dim, OpKind
from dippm.graph.passes.fuse_gates import fuse_gates

SHAPE = (Dim(1, 0), 8)


@pytest.mark.parametrize(("gate", "kind"), [(OpKind.SIGMOID, "silu"), (OpKind.HARD_SIGMOID, "hard_swish")])
@pytest.mark.parametrize("order", ["x g", "g x"])
def test_gate_of_the_input_itself(sketch, after, gate: OpKind, kind: str, order: str) -> None:
    graph = sketch.input("x", *SHAPE).node("g", gate, "x").node("y", OpKind.MUL, order).graph("y")
    assert after(fuse_gates, graph) == [(kind, "x")]


def test_mish(sketch, after) -> None:
    sketch.input("x", *SHAPE).node("s", OpKind.SOFTPLUS, "x").node("t", OpKind.TANH, "s")
    assert after(fuse_gates, sketch.node("y", OpKind.MUL, "x t").graph("y")) == [("mish", "x")]


def test_gate_of_something_else_stays(sketch, after) -> None:
    sketch.input("x", *SHAPE).input("z", *SHAPE).node("g", OpKind.SIGMOID, "z")
    graph = sketch.node("y", OpKind.MUL, "x g").graph("y")
    assert [kind for kind, _ in after(fuse_gates, graph)] == ["sigmoid", "mul"]


def test_gate_that_is_used_elsewhere_stays(sketch, after) -> None:
    graph = sketch.input("x", *SHAPE).node("g", OpKind.SIGMOID, "x").node("y", OpKind.MUL, "x g").graph("y", "g")
    assert [kind for kind, _ in after(fuse_gates, graph)] == ["sigmoid", "mul"]
