from __future__ import annotations

from dippm.graph import Dim, OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.fuse_group_norm import fuse_group_norm

N = Dim(1, 0)


def core(sketch, back: tuple[Dim | int, ...] = (N, 8, 4, 4)):
    sketch.input("x", N, 8, 4, 4).weight("one", 2).weight("zero", 2).weight("g", 8, 1, 1).weight("b", 8)
    sketch.node("r", OpKind.VIEW, "x", N, 2, 64, function="reshape").node("i", OpKind.INSTANCE_NORM, "r one zero")
    return sketch.node("a", OpKind.VIEW, "i", *back, function="reshape")


def test_scale_and_shift_are_taken_in(sketch, after) -> None:
    core(sketch).node("b3", OpKind.VIEW, "b", 8, 1, 1, function="reshape").node("s", OpKind.MUL, "a g")
    graph = sketch.node("y", OpKind.ADD, "s b3").graph("y")
    assert after(fuse_group_norm, graph) == [("group_norm", "x g b")]


def test_groups_and_size(sketch) -> None:
    editor = GraphEditor(core(sketch).graph("a"))
    fuse_group_norm(editor)
    assert dict(editor.to_graph().nodes[0].attributes) == {"groups": 2, "axes_size": 64}


def test_shift_by_nothing_is_taken_in(sketch, after) -> None:
    graph = core(sketch).node("s", OpKind.MUL, "a g").node("y", OpKind.ADD, "s", scalar=0.0).graph("y")
    assert after(fuse_group_norm, graph) == [("group_norm", "x g")]


def test_another_shape_afterwards_is_no_group_norm(sketch, after) -> None:
    graph = core(sketch, (N, 128)).graph("a")
    assert [kind for kind, _ in after(fuse_group_norm, graph)] == ["view", "instance_norm", "view"]
