from __future__ import annotations

from dippm.graph import Dim, OpKind
from dippm.graph.passes.fuse_linear import fuse_linear

N = Dim(1, 0)


def layer(sketch):
    return sketch.input("x", N, 7, 8).weight("w", 5, 8).weight("b", 5).node("m", OpKind.LINEAR, "x w", N, 7, 5)


def test_bias_is_taken_in(sketch, after) -> None:
    graph = layer(sketch).node("y", OpKind.ADD, "b m", N, 7, 5).graph("y")
    assert after(fuse_linear, graph) == [("linear", "x w b")]


def test_residual_is_not_a_bias(sketch, after) -> None:
    graph = layer(sketch).node("r", OpKind.RELU, "m").node("y", OpKind.ADD, "m r").graph("y")
    assert [kind for kind, _ in after(fuse_linear, graph)] == ["linear", "relu", "add"]


def test_stored_table_of_another_shape_is_not_a_bias(sketch, after) -> None:
    graph = layer(sketch).weight("p", 7, 5).node("y", OpKind.ADD, "m p").graph("y")
    assert [kind for kind, _ in after(fuse_linear, graph)] == ["linear", "add"]


def test_product_that_is_used_elsewhere_stays(sketch, after) -> None:
    graph = layer(sketch).node("y", OpKind.ADD, "m b").graph("y", "m")
    assert [kind for kind, _ in after(fuse_linear, graph)] == ["linear", "add"]


def test_bias_that_mixed_precision_casts_is_taken_in(sketch, after) -> None:
    graph = layer(sketch).node("c", OpKind.CAST, "b").node("y", OpKind.ADD, "m c", N, 7, 5).graph("y")
    assert after(fuse_linear, graph) == [("cast", "b"), ("linear", "x w c")]
