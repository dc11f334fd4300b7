from __future__ import annotations

from math import prod

import pytest

from dippm.graph import Dim, OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.unfuse_bilinear import unfuse_bilinear

N = Dim(1, 0)


def macs(graph, batch: int) -> int:
    shapes = [[dim.at(batch) for dim in tensor.shape] for tensor in graph.tensors]
    products = [node for node in graph.nodes if node.kind is OpKind.MATMUL]
    return sum(prod(shapes[node.outputs[0]]) * shapes[node.inputs[0]][-1] for node in products)


@pytest.fixture(name="whole")
def _whole(sketch):
    """A layer of 3 features of 4 and 5, as PyTorch's exporter writes it."""
    return (
        sketch.input("x", N, 4)
        .input("y", N, 5)
        .weight("w", 4, 15)
        .weight("b", 3)
        .node("p", OpKind.MATMUL, "x w", N, 15)
        .node("m", OpKind.VIEW, "p", N, 3, 5, function="reshape")
        .node("c", OpKind.VIEW, "y", N, 5, 1, function="reshape")
        .node("q", OpKind.MATMUL, "m c", N, 3, 1)
        .node("s", OpKind.VIEW, "q", N, 3, function="reshape")
        .node("z", OpKind.ADD, "s b")
    )


@pytest.mark.parametrize("result", ["s", "z"])
def test_each_feature_has_two_products_and_a_sum(whole, result: str) -> None:
    graph = whole.graph(result)
    editor = GraphEditor(graph)
    unfuse_bilinear(editor, range(6 if result == "z" else 5))
    found = editor.to_graph()
    kinds = [node.kind for node in found.nodes if node.kind is not OpKind.VIEW]
    bias = [OpKind.ADD] if result == "z" else []
    assert kinds == [OpKind.FILL, *[OpKind.MATMUL, OpKind.MATMUL, OpKind.ADD] * 3, OpKind.CONCAT, *bias]
    assert macs(found, 7) == macs(graph, 7) == 7 * 3 * (4 * 5 + 5)


def test_products_of_two_inputs_stay(sketch) -> None:
    graph = (
        sketch.input("x", N, 4)
        .input("w", 4, 15)
        .input("y", N, 15, 1)
        .node("p", OpKind.MATMUL, "x w", N, 15)
        .node("m", OpKind.VIEW, "p", N, 1, 15, function="reshape")
        .node("q", OpKind.MATMUL, "m y", N, 1, 1)
        .graph("q")
    )
    editor = GraphEditor(graph)
    unfuse_bilinear(editor, range(3))
    assert editor.to_graph() == graph
