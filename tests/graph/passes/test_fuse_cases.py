from __future__ import annotations

import pytest

from dippm.graph import Dim, OpKind
from dippm.graph.passes.fuse_cases import fuse_cases

N = Dim(1, 0)


@pytest.fixture(name="pair")
def _pair(sketch):
    return sketch.input("x", N, 8).input("y", N, 8)


def test_an_angle_of_two_is_one_operator(pair, after) -> None:
    graph = (
        pair.node("d", OpKind.DIV, "x y")
        .node("a", OpKind.UNARY, "d", function="atan")
        .node("g", OpKind.BINARY, "x", function="greater", scalar=0.0)
        .node("p", OpKind.ADD, "a", scalar=3.14159)
        .node("m", OpKind.SUB, "a", scalar=3.14159)
        .node("i", OpKind.BINARY, "g p m", function="where")
        .node("l", OpKind.BINARY, "y", function="less", scalar=0.0)
        .node("o", OpKind.BINARY, "l i a", function="where")
        .graph("o")
    )
    assert after(fuse_cases, graph) == [("binary", "x y")]


@pytest.mark.parametrize("is_tensor", [True, False])
def test_a_way_between_two_is_one_operator(pair, after, is_tensor: bool) -> None:
    weight = " w" if is_tensor else ""
    scalar = {} if is_tensor else {"scalar": 0.3}
    if is_tensor:
        pair.input("w", N, 8)
    graph = (
        pair.input("c", N, 8)
        .node("d", OpKind.SUB, "y x")
        .node("s", OpKind.MUL, f"d{weight}", **scalar)
        .node("t", OpKind.ADD, "x s")
        .node("r", OpKind.MUL, f"d{weight}", **scalar)
        .node("u", OpKind.SUB, "y r")
        .node("o", OpKind.BINARY, "c t u", function="where")
        .graph("o")
    )
    assert after(fuse_cases, graph) == [("binary", f"x y{weight}")]


@pytest.mark.parametrize("is_tensor", [True, False])
@pytest.mark.parametrize("is_other", [True, False])
def test_what_is_left_of_a_division_is_one_operator(pair, after, is_tensor: bool, is_other: bool) -> None:
    other = ("x" if is_other else "y") if is_tensor else ""
    graph = (
        pair.node("d", OpKind.DIV, "x y" if is_tensor else "x", **({} if is_tensor else {"scalar": 3.0}))
        .node("f", OpKind.UNARY, "d", function="floor")
        .node("m", OpKind.MUL, f"f {other}", **({} if is_tensor else {"scalar": 4.0 if is_other else 3.0}))
        .node("o", OpKind.SUB, "x m")
        .graph("o")
    )
    found = after(fuse_cases, graph)
    if is_other:
        assert [kind for kind, *_ in found] == ["div", "unary", "mul", "sub"]
    else:
        assert found == [("binary", "x y" if is_tensor else "x")]


@pytest.mark.parametrize("is_of_x", [True, False])
def test_numbers_for_what_is_none_are_one_operator(pair, after, is_of_x: bool) -> None:
    source = "x" if is_of_x else "y"
    graph = (
        pair.node("n", OpKind.UNARY, source, function="isnan")
        .node("a", OpKind.BINARY, "n x", function="where", scalar=0.0)
        .node("i", OpKind.UNARY, "x", function="isinf")
        .node("l", OpKind.BINARY, "x", function="less", scalar=0.0)
        .node("k", OpKind.BINARY, "l i", function="logical_and")
        .node("b", OpKind.BINARY, "k a", function="where", scalar=-1e9)
        .node("g", OpKind.BINARY, "a", function="greater", scalar=0.0)
        .node("h", OpKind.BINARY, "g i", function="logical_and")
        .node("o", OpKind.BINARY, "h b", function="where", scalar=1e9)
        .graph("o")
    )
    found = after(fuse_cases, graph)
    assert found == [("unary", "x")] if is_of_x else len(found) == 9


def test_three_choices_of_a_models_own_stay(pair, after) -> None:
    graph = (
        pair.node("l", OpKind.BINARY, "x", function="less", scalar=0.0)
        .node("a", OpKind.BINARY, "l x", function="where", scalar=0.0)
        .node("g", OpKind.BINARY, "x", function="greater", scalar=9.0)
        .node("b", OpKind.BINARY, "g a", function="where", scalar=9.0)
        .node("h", OpKind.BINARY, "y", function="greater", scalar=9.0)
        .node("o", OpKind.BINARY, "h b", function="where", scalar=9.0)
        .graph("o")
    )
    assert len(after(fuse_cases, graph)) == 6
