from __future__ import annotations

from dippm.graph import Dim, OpKind
from dippm.graph.passes.remove_dead_nodes import remove_dead_nodes

N = Dim(1, 0)


def test_nodes_and_weights_without_use_go(sketch) -> None:
    sketch.input("x", N, 4).weight("w", 4, 4).node("unused", OpKind.LINEAR, "x w").node("y", OpKind.RELU, "x")
    graph = remove_dead_nodes(sketch.graph("y"))
    assert [node.kind for node in graph.nodes] == [OpKind.RELU]
    assert [tensor.name for tensor in graph.tensors] == ["x", "y"]


def test_inputs_stay_without_use(sketch) -> None:
    graph = remove_dead_nodes(sketch.input("x", N, 4).input("z", N).node("y", OpKind.RELU, "x").graph("y"))
    assert [graph.tensors[index].name for index in graph.inputs] == ["x", "z"]
