from __future__ import annotations

from dippm.graph import Dim, OpKind
from dippm.graph.passes.fuse_roll import fuse_roll

N = Dim(1, 0)


def test_two_slices_joined_to_the_whole_are_a_roll(sketch, after) -> None:
    sketch.input("x", N, 8, 4).node("a", OpKind.VIEW, "x", N, 3, 4, function="slice")
    sketch.node("b", OpKind.VIEW, "x", N, 5, 4, function="slice")
    graph = sketch.node("y", OpKind.CONCAT, "a b", N, 8, 4, axis=1).graph("y")
    assert after(fuse_roll, graph) == [("copy", "x")]


def test_other_concatenations_stay(sketch, after) -> None:
    sketch.input("x", N, 8, 4).node("a", OpKind.VIEW, "x", N, 3, 4, function="slice")
    sketch.node("b", OpKind.VIEW, "x", N, 4, 4, function="slice")
    graph = sketch.node("y", OpKind.CONCAT, "a b", N, 7, 4, axis=1).graph("y")
    assert [kind for kind, _ in after(fuse_roll, graph)] == ["view", "view", "concat"]


def _roll(sketch, source: str, result: str) -> None:
    sketch.node(f"{result}a", OpKind.VIEW, source, N, 3, 4, function="slice")
    sketch.node(f"{result}b", OpKind.VIEW, source, N, 5, 4, function="slice")
    sketch.node(result, OpKind.CONCAT, f"{result}a {result}b", N, 8, 4, axis=1)


def test_rolls_over_several_dimensions_are_one(sketch, after) -> None:
    sketch.input("x", N, 8, 4)
    _roll(sketch, "x", "y")
    _roll(sketch, "y", "z")
    assert after(fuse_roll, sketch.graph("z")) == [("copy", "x")]


def test_a_roll_that_something_else_reads_stays(sketch, after) -> None:
    sketch.input("x", N, 8, 4)
    _roll(sketch, "x", "y")
    _roll(sketch, "y", "z")
    sketch.node("w", OpKind.RELU, "y", N, 8, 4)
    assert [kind for kind, _ in after(fuse_roll, sketch.graph("z", "w"))].count("copy") == 2
