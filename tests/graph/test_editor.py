from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dippm.graph import MOST_RUNS, Dim, DType, Graph, Node, OpKind, TensorRole, TensorSpec
from dippm.graph.editor import GraphEditor

SHAPE = (Dim(1, 0), Dim(0, 4))


def spec(name: str, role: TensorRole = TensorRole.ACTIVATION, alias_of: int | None = None) -> TensorSpec:
    return TensorSpec(name=name, shape=SHAPE, dtype=DType.FLOAT32, role=role, alias_of=alias_of)


@pytest.fixture
def graph() -> Graph:
    return Graph(
        source="s",
        framework="test",
        tensors=(spec("x", TensorRole.INPUT), spec("a"), spec("v", alias_of=1), spec("y"), spec("unused")),
        nodes=(
            Node(kind=OpKind.RELU, inputs=(0,), outputs=(1,), scope="block", source_op="Relu"),
            Node(kind=OpKind.VIEW, inputs=(1,), outputs=(2,)),
            Node(kind=OpKind.ADD, inputs=(2, -1, 0), outputs=(3,)),
            Node(kind=OpKind.TANH, inputs=(0,), outputs=(4,)),
        ),
        inputs=(0,),
        outputs=(3,),
    )


def test_unchanged_graph_loses_only_what_is_unused(graph: Graph) -> None:
    result = GraphEditor(graph).to_graph()
    assert result.nodes == graph.nodes[:3]
    assert result.tensors == graph.tensors[:4]


def test_weights_of_unused_nodes_go_and_unused_inputs_stay(builder: Any) -> None:
    x, _ = builder.input(builder.N, 4), builder.input(builder.N)
    builder.node(OpKind.LINEAR, [x, builder.weight(4, 4)], builder.N, 4)
    y = builder.node(OpKind.RELU, [x], builder.N, 4)
    graph = GraphEditor(builder.graph(y)).to_graph()
    assert [node.kind for node in graph.nodes] == [OpKind.RELU]
    assert [tensor.name for tensor in graph.tensors] == ["t0", "t1", "t4"]
    assert graph.inputs == (0, 1)


def test_weights_that_nothing_ever_read_stay(graph: Graph) -> None:
    weights = [spec(role.value, role) for role in (TensorRole.PARAMETER, TensorRole.BUFFER, TensorRole.CONSTANT)]
    last = Node(kind=OpKind.ADD, inputs=(0, 8), outputs=(9,))
    held = replace(
        graph,
        tensors=(*graph.tensors, *weights, spec("of the lost", TensorRole.PARAMETER), spec("lost")),
        nodes=(*graph.nodes, last),
    )
    result = GraphEditor(held).to_graph()
    assert len(result.nodes) == 3
    assert [tensor.name for tensor in result.tensors] == ["x", "parameter", "buffer", "a", "v", "y"]


def test_readers_and_writers(graph: Graph) -> None:
    editor = GraphEditor(graph)
    assert editor.readers(0) == [0, 2, 3]
    assert editor.readers(3) == [-1]
    assert editor.only_reader(1) == 1
    assert editor.only_reader(0) == -1
    assert editor.only_reader(3) == -1
    assert editor.writer(2) == 1
    assert editor.writer(0) == -1


def test_the_writer_of_what_is_read_once(graph: Graph) -> None:
    editor = GraphEditor(graph)
    assert editor.inner_writer(1, OpKind.RELU) == graph.nodes[0]
    assert editor.inner_writer(1, OpKind.ADD) is None
    assert editor.inner_writer(3, OpKind.ADD) is None  # an output


def test_numbers_are_stored_and_of_one_element(builder: Any) -> None:
    scale, weight, x = builder.weight(1, 1), builder.weight(1, 2), builder.input(1, 1)
    builder.node(OpKind.MUL, [x, scale, weight], 1, 2)
    editor = GraphEditor(builder.graph())
    assert [editor.is_number(index) for index in (scale, weight, x)] == [True, False, False]


def test_replaced_node_is_what_readers_see(graph: Graph) -> None:
    editor = GraphEditor(graph)
    editor.replace(2, replace(graph.nodes[2], inputs=(1,)))
    assert editor.readers(2) == []
    assert editor.readers(1) == [1, 2]
    assert [node.kind for node in editor.to_graph().nodes] == [OpKind.RELU, OpKind.ADD]


def test_inserted_node_stands_in_front(graph: Graph) -> None:
    editor = GraphEditor(graph)
    copy = editor.add_tensor("copy", SHAPE, DType.FLOAT32)
    editor.insert_before(2, editor.make_node(OpKind.COPY, (2,), (copy,), like=graph.nodes[0]))
    editor.replace(2, replace(graph.nodes[2], inputs=(copy, -1, 0)))
    result = editor.to_graph()
    assert [node.kind for node in result.nodes] == [OpKind.RELU, OpKind.VIEW, OpKind.COPY, OpKind.ADD]
    assert result.nodes[2].scope == "block"
    assert result.nodes[3].inputs == (3, -1, 0)


def test_removed_node_has_no_place(graph: Graph) -> None:
    editor = GraphEditor(graph)
    editor.remove(3)
    with pytest.raises(LookupError):
        editor.node(3)


def test_what_is_put_in_front_of_a_node_outlives_it(graph: Graph) -> None:
    editor = GraphEditor(graph)
    made = editor.add_tensor("made", SHAPE, DType.FLOAT32)
    spare = editor.add_tensor("spare", SHAPE, DType.FLOAT32)
    view = graph.nodes[1]
    editor.insert_before(1, editor.make_node(OpKind.SIGMOID, (1,), (made,), like=view))
    editor.insert_before(1, editor.make_node(OpKind.TANH, (1,), (spare,), like=view))
    editor.replace(2, replace(graph.nodes[2], inputs=(made, -1, 0)))
    assert [node.kind for node in editor.to_graph().nodes] == [OpKind.RELU, OpKind.SIGMOID, OpKind.ADD]


def test_substitute_rewires_readers_and_outputs(builder: Any) -> None:
    x = builder.input(builder.N, 4)
    first = builder.node(OpKind.RELU, [x], builder.N, 4)
    second = builder.node(OpKind.ADD, [first, first], builder.N, 4)
    editor = GraphEditor(builder.graph(first, second))
    editor.substitute(first, x)
    assert (editor.readers(first), editor.readers(x)) == ([], [-1, 0, 1])
    graph = editor.to_graph()
    assert [node.inputs for node in graph.nodes] == [(0, 0)]
    assert graph.outputs == (0, 1)


def test_a_node_in_place_of_one_in_a_loop_may_run_as_often(graph: Graph) -> None:
    editor, like = GraphEditor(graph), replace(graph.nodes[0], attributes={MOST_RUNS: 7.0, "function": "x"})
    made = editor.make_node(OpKind.TANH, (0,), (1,), like=like, attributes={"approximate": "none"})
    assert made.attributes == {"approximate": "none", MOST_RUNS: 7.0}
    assert editor.make_node(OpKind.TANH, (0,), (1,), like=graph.nodes[0]).attributes == {}
