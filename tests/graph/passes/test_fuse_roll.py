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
