from __future__ import annotations

import pytest

from dippm.graph import Dim, Node, OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.settle_recurrent_layout import settle_recurrent_layout

N = Dim(1, 0)
LENGTH, FEATURES, HIDDEN = 5, 3, 4


def layer(sketch, source: str, *, directions: int = 1):
    sketch.weight("w", directions, 4 * HIDDEN, FEATURES)
    sketch.tensor("y", LENGTH, directions, N, HIDDEN).tensor("h", directions, N, HIDDEN).tensor(
        "c", directions, N, HIDDEN
    )
    sketch.nodes.append(
        Node(
            kind=OpKind.LSTM,
            inputs=(sketch.index[source], sketch.index["w"]),
            outputs=tuple(sketch.index[name] for name in "yhc"),
            attributes={"hidden_size": HIDDEN, "num_layers": 1, "num_directions": directions, "batch_first": False},
        )
    )
    turned = (LENGTH, N, directions, HIDDEN)
    sketch.node("turned", OpKind.VIEW, "y", *turned, function="transpose", perm=(0, 2, 1, 3))
    return sketch.node("flat", OpKind.VIEW, "turned", LENGTH, N, directions * HIDDEN, function="reshape")


def settled(graph):
    editor = GraphEditor(graph)
    editor.drop_unused()
    settle_recurrent_layout(editor)
    done = editor.to_graph()
    node = next(item for item in done.nodes if item.kind is OpKind.LSTM)
    return done, node


@pytest.mark.parametrize("directions", [1, 2])
def test_transpositions_around_a_layer_are_its_own(sketch, directions) -> None:
    sketch.input("x", N, LENGTH, FEATURES)
    sketch.node("first", OpKind.VIEW, "x", LENGTH, N, FEATURES, function="transpose", perm=(1, 0, 2))
    layer(sketch, "first", directions=directions)
    sketch.node("z", OpKind.VIEW, "flat", N, LENGTH, directions * HIDDEN, function="transpose", perm=(1, 0, 2))
    graph, node = settled(sketch.graph("z"))
    assert [item.kind for item in graph.nodes] == [OpKind.LSTM]
    assert node.attributes["batch_first"] is True
    assert graph.tensors[node.inputs[0]].name == "x"
    assert graph.tensors[node.outputs[0]].shape == (N, Dim(0, LENGTH), Dim(0, directions * HIDDEN))


def test_directions_stand_side_by_side(sketch) -> None:
    graph, node = settled(layer(sketch.input("x", LENGTH, N, FEATURES), "x", directions=2).graph("flat"))
    assert [item.kind for item in graph.nodes] == [OpKind.LSTM]
    assert node.attributes["batch_first"] is False
    assert graph.tensors[node.outputs[0]].shape == (Dim(0, LENGTH), N, Dim(0, 2 * HIDDEN))


def test_a_transposition_at_one_end_stays(sketch) -> None:
    sketch.input("x", N, LENGTH, FEATURES)
    sketch.node("first", OpKind.VIEW, "x", LENGTH, N, FEATURES, function="transpose", perm=(1, 0, 2))
    graph, node = settled(layer(sketch, "first").graph("flat"))
    assert [item.kind for item in graph.nodes] == [OpKind.VIEW, OpKind.LSTM]
    assert node.attributes["batch_first"] is False


def test_a_sequence_that_is_read_as_it_is_stays(sketch) -> None:
    graph, node = settled(layer(sketch.input("x", LENGTH, N, FEATURES), "x").graph("flat", "y"))
    assert graph.tensors[node.outputs[0]].name == "y"


def test_directions_that_are_not_put_side_by_side_stay_where_they_are(sketch) -> None:
    sketch.input("x", LENGTH, N, FEATURES)
    layer(sketch, "x", directions=2).node("z", OpKind.VIEW, "y", LENGTH, N, 2 * HIDDEN, function="reshape")
    graph, node = settled(sketch.graph("z"))
    assert [dim.at(7) for dim in graph.tensors[node.outputs[0]].shape] == [LENGTH, 2, 7, HIDDEN]
