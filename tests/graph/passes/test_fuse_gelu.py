from __future__ import annotations

from math import pi, sqrt

import pytest

from dippm.graph import Dim, OpKind
from dippm.graph.passes.fuse_gelu import fuse_converted_gelu, fuse_gelu

SHAPE = (Dim(1, 0), 8)


def erf_core(sketch, scalar: float = sqrt(2)):
    sketch.input("x", *SHAPE).node("s", OpKind.DIV, "x", scalar=scalar)
    return sketch.node("e", OpKind.UNARY, "s", function="erf").node("p", OpKind.ADD, "e", scalar=1.0)


def test_half_at_the_end(sketch, after) -> None:
    graph = erf_core(sketch).node("m", OpKind.MUL, "x p").node("y", OpKind.MUL, "m", scalar=0.5).graph("y")
    assert after(fuse_gelu, graph) == [("gelu", "x")]


def test_half_in_the_middle(sketch, after) -> None:
    graph = erf_core(sketch).node("h", OpKind.MUL, "p", scalar=0.5).node("y", OpKind.MUL, "x h").graph("y")
    assert after(fuse_gelu, graph) == [("gelu", "x")]


def test_half_on_the_input(sketch, after) -> None:
    graph = erf_core(sketch).node("h", OpKind.MUL, "x", scalar=0.5).node("y", OpKind.MUL, "h p").graph("y")
    assert after(fuse_gelu, graph) == [("gelu", "x")]


def test_scale_by_a_product(sketch, after) -> None:
    sketch.input("x", *SHAPE).node("s", OpKind.MUL, "x", scalar=sqrt(0.5))
    sketch.node("e", OpKind.UNARY, "s", function="erf").node("p", OpKind.ADD, "e", scalar=1.0)
    graph = sketch.node("m", OpKind.MUL, "p x").node("y", OpKind.DIV, "m", scalar=2.0).graph("y")
    assert after(fuse_gelu, graph) == [("gelu", "x")]


def test_other_numbers_are_no_gelu(sketch, after) -> None:
    graph = erf_core(sketch, 2.0).node("m", OpKind.MUL, "x p").node("y", OpKind.MUL, "m", scalar=0.5).graph("y")
    assert len(after(fuse_gelu, graph)) == 5


def test_part_that_is_used_elsewhere_stays(sketch, after) -> None:
    graph = erf_core(sketch).node("m", OpKind.MUL, "x p").node("y", OpKind.MUL, "m", scalar=0.5).graph("y", "e")
    assert len(after(fuse_gelu, graph)) == 5


def tanh_core(sketch, *, is_power: bool):
    sketch.input("x", *SHAPE)
    if is_power:
        sketch.node("c", OpKind.POW, "x", scalar=3.0)
    else:
        sketch.node("q", OpKind.MUL, "x x").node("c", OpKind.MUL, "x q")
    sketch.node("k", OpKind.MUL, "c", scalar=0.044715).node("a", OpKind.ADD, "x k")
    sketch.node("b", OpKind.MUL, "a", scalar=sqrt(2 / pi)).node("t", OpKind.TANH, "b")
    return sketch.node("p", OpKind.ADD, "t", scalar=1.0)


@pytest.mark.parametrize("is_power", [True, False])
def test_tanh_approximation(sketch, after, is_power: bool) -> None:
    core = tanh_core(sketch, is_power=is_power)
    graph = core.node("h", OpKind.MUL, "p", scalar=0.5).node("y", OpKind.MUL, "x h").graph("y")
    assert after(fuse_gelu, graph) == [("gelu", "x")]


def test_tanh_spelt_out_in_python_stays(sketch, after) -> None:
    core = tanh_core(sketch, is_power=True)
    graph = core.node("h", OpKind.MUL, "x", scalar=0.5).node("y", OpKind.MUL, "h p").graph("y")
    assert len(after(fuse_gelu, graph)) == 8
    assert after(fuse_converted_gelu, graph) == [("gelu", "x")]
