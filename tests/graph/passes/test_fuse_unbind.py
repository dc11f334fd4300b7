from __future__ import annotations

from dataclasses import replace

from dippm.graph import Dim, Graph, OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.fuse_unbind import fuse_unbind

N = Dim(1, 0)


def pieces(sketch, *outputs: str) -> Graph:
    sketch.input("x", 2, N, 4).node("a", OpKind.VIEW, "x", 1, N, 4, function="split", axis=0)
    sketch.tensor("b", 1, N, 4)
    sketch.nodes[0] = replace(sketch.nodes[0], outputs=(sketch.index["a"], sketch.index["b"]))
    sketch.node("p", OpKind.VIEW, "a", N, 4, function="reshape").node("q", OpKind.VIEW, "b", N, 4, function="reshape")
    return sketch.graph(*outputs)


def test_split_and_squeezes_are_one_view(sketch) -> None:
    editor = GraphEditor(pieces(sketch, "p", "q"))
    fuse_unbind(editor)
    graph = editor.to_graph()
    assert [node.attributes["function"] for node in graph.nodes] == ["unbind"]
    assert graph.nodes[0].outputs == graph.outputs


def test_slices_that_are_used_themselves_stay(sketch, after) -> None:
    assert len(after(fuse_unbind, pieces(sketch, "p", "q", "a"))) == 3


def test_slices_that_make_up_the_whole_are_one_view_too(sketch, after) -> None:
    sketch.input("x", 2, N, 4)
    for name in "ab":
        sketch.node(name, OpKind.VIEW, "x", 1, N, 4, function="slice")
        sketch.node(f"{name}s", OpKind.VIEW, name, N, 4, function="reshape")
    assert after(fuse_unbind, sketch.graph("as", "bs")) == [("view", "x")]


def test_some_slices_are_no_unbind(sketch, after) -> None:
    sketch.input("x", 3, N, 4)
    for name in "ab":
        sketch.node(name, OpKind.VIEW, "x", 1, N, 4, function="slice")
        sketch.node(f"{name}s", OpKind.VIEW, name, N, 4, function="reshape")
    assert len(after(fuse_unbind, sketch.graph("as", "bs"))) == 4
