from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.graph import Dim, OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.fuse_noted_operators import NotedOperator, fuse_noted_operators

N = Dim(1, 0)
SOFTPLUS = NotedOperator(call="softplus_3", kind=OpKind.SOFTPLUS)


def fused(graph, operator: NotedOperator, names: str):
    editor = GraphEditor(graph)
    fuse_noted_operators(editor, dict.fromkeys(names.split(), operator))
    return editor.to_graph()


def described(graph) -> list[tuple[str, ...]]:
    return [
        (node.kind.value, *(graph.tensors[index].name for index in (*node.inputs, *node.outputs)))
        for node in graph.nodes
    ]


def test_parts_of_one_call_are_one_operator(sketch) -> None:
    graph = (
        sketch.input("x", N, 8)
        .weight("twenty")
        .node("s", OpKind.SOFTPLUS, "x")
        .node("g", OpKind.BINARY, "x twenty", function="greater")
        .node("y", OpKind.BINARY, "g x s", function="where")
        .graph("y")
    )
    found = fused(graph, SOFTPLUS, "s g y")
    assert described(found) == [("softplus", "x", "y")]
    assert "function" not in found.nodes[0].attributes


def test_what_a_part_does_in_several_steps_is_its(sketch) -> None:
    drawn = sketch.input("x", N, 8).input("y", N, 8).node("d", OpKind.DIV, "x y")
    graph = drawn.node("f", OpKind.UNARY, "d", function="floor").graph("f")
    graph = replace(graph, tensors=tuple(replace(t, name=t.name.replace("d", "")) for t in graph.tensors))
    operator = NotedOperator(call="floor_divide", kind=OpKind.BINARY, function="floor_divide")
    found = fused(graph, operator, "f")
    assert described(found) == [("binary", "x", "y", "f")]
    assert found.nodes[0].attributes["function"] == "floor_divide"


def test_a_part_that_others_read_stays_for_them(sketch) -> None:
    graph = (
        sketch.input("x", N, 8)
        .node("a", OpKind.ADD, "x", scalar=1.0)
        .node("l", OpKind.UNARY, "a", function="log")
        .node("o", OpKind.RELU, "a")
        .graph("l", "o")
    )
    operator = NotedOperator(call="log1p", kind=OpKind.UNARY, function="log1p")
    found = fused(graph, operator, "a l")
    assert described(found) == [("add", "x", "a"), ("unary", "x", "l"), ("relu", "a", "o")]


def test_a_number_that_is_added_stays(sketch) -> None:
    graph = sketch.input("x", N, 8).node("c", OpKind.CAST, "x").node("a", OpKind.ADD, "c", scalar=1e-5).graph("a")
    found = fused(graph, NotedOperator(call="add", kind=OpKind.ADD), "c a")
    assert described(found) == [("add", "x", "a")]
    assert found.nodes[0].attributes["scalar"] == 1e-5


def test_both_results_of_a_reduction_are_made_by_one(sketch) -> None:
    graph = (
        sketch.input("x", N, 8)
        .node("v", OpKind.REDUCE, "x", N, function="max", axes=(1,))
        .node("r", OpKind.RELU, "v")
        .node("i", OpKind.REDUCE, "x", N, function="argmax", axes=(1,))
        .graph("r", "i")
    )
    found = fused(graph, NotedOperator(call="max_1", kind=OpKind.REDUCE, function="max"), "v i")
    assert described(found) == [("reduce", "x", "v", "i"), ("relu", "v", "r")]
    assert found.nodes[0].attributes["axes"] == (1,)


@pytest.mark.parametrize("names", ["", "s"])
def test_one_part_alone_stays(sketch, names: str) -> None:
    graph = sketch.input("x", N, 8).node("s", OpKind.RELU, "x").graph("s")
    assert described(fused(graph, SOFTPLUS, names)) == [("relu", "x", "s")]
