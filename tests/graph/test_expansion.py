from typing import Any

from dippm.graph import MOST_RUNS, Dim, DType, Node, OpKind
from dippm.graph.expansion import Expansion


def test_several_nodes_stand_for_one(builder: Any) -> None:
    n = builder.N
    x = builder.input(n, 4, 8, dtype=DType.FLOAT16)
    y = builder.node(OpKind.RELU, [x], n, 4, 8, dtype=DType.FLOAT16)
    graph = builder.graph()
    node = Node(kind=OpKind.SOFTMAX, inputs=(x,), outputs=(y,), scope="block.0", source_op="op")
    expansion = Expansion(graph, name="part")
    turned = expansion.view(node, x, (Dim(1, 0), Dim(0, 8), Dim(0, 4)), "transpose")
    again = expansion.view(node, turned, graph.tensors[x].shape, "transpose")
    result = expansion.compute(node, OpKind.ADD, (again, x), graph.tensors[x].shape, releases=(y,), function="add")
    expansion.add_node(node, OpKind.COPY, (result,), y)
    assert expansion.tensors[: len(graph.tensors)] == list(graph.tensors)
    # Views are of the storage itself, results of the type of what the node read.
    assert [expansion.tensors[index].alias_of for index in (turned, again, result)] == [x, x, None]
    assert {(each.name, each.dtype) for each in expansion.tensors[len(graph.tensors) :]} == {("part", DType.FLOAT16)}
    assert [(each.kind, each.inputs, each.outputs, each.releases) for each in expansion.nodes] == [
        (OpKind.VIEW, (x,), (turned,), ()),
        (OpKind.VIEW, (turned,), (again,), ()),
        (OpKind.ADD, (again, x), (result,), (y,)),
        (OpKind.COPY, (result,), (y,), ()),
    ]
    assert {(each.scope, each.source_op) for each in expansion.nodes} == {("block.0", "op")}


def test_nodes_in_place_of_one_in_a_loop_may_run_as_often(builder: Any) -> None:
    x, y = builder.input(builder.N, 8), builder.tensor(builder.N, 8)
    node = Node(kind=OpKind.SOFTMAX, inputs=(x,), outputs=(y,), attributes={MOST_RUNS: 7.0})
    expansion = Expansion(builder.graph(), name="part")
    expansion.add_node(node, OpKind.COPY, (x,), y, function="contiguous")
    assert expansion.nodes[0].attributes == {"function": "contiguous", MOST_RUNS: 7.0}
