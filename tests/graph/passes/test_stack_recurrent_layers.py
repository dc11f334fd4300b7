from __future__ import annotations

import pytest

from dippm.graph import Dim, Node, OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.stack_recurrent_layers import stack_recurrent_layers

N = Dim(1, 0)
LENGTH, FEATURES, HIDDEN = 5, 3, 4


def layer(
    sketch,
    name: str,
    source: str,
    *,
    kind=OpKind.LSTM,
    directions: int = 1,
    hidden: int = HIDDEN,
    zeros=True,
    weights: str = "",
    batch: int | Dim = N,
    **attributes,
):
    """One layer as ONNX has it; its sequence is called name, the views after it name_turned and name_flat."""
    states = [f"{name}_h0", f"{name}_c0"] if kind is OpKind.LSTM else [f"{name}_h0"]
    for state in states:
        shape = (directions, batch, hidden)
        sketch.node(state, OpKind.FILL, "", *shape) if zeros else sketch.input(state, *shape)
    features = sketch.tensors[sketch.index[source]].shape[-1].fixed
    if not weights:
        sketch.weight(f"{name}_w", directions, 4 * hidden, features).weight(f"{name}_r", directions, 4 * hidden, hidden)
    inputs = [source, *states, f"{weights or name}_w", f"{weights or name}_r"]
    sketch.tensor(name, LENGTH, directions, batch, hidden)
    finals = [f"{name}_{part}" for part in ("hn", "cn")[: len(states)]]
    for final in finals:
        sketch.tensor(final, directions, batch, hidden)
    sketch.nodes.append(
        Node(
            kind=kind,
            inputs=tuple(sketch.index[item] for item in inputs),
            outputs=tuple(sketch.index[item] for item in (name, *finals)),
            attributes={
                "hidden_size": hidden,
                "num_layers": 1,
                "num_directions": directions,
                "batch_first": False,
                **attributes,
            },
        )
    )
    turned = (LENGTH, batch, directions, hidden)
    sketch.node(f"{name}_turned", OpKind.VIEW, name, *turned, function="transpose", perm=(0, 2, 1, 3))
    return sketch.node(
        f"{name}_flat", OpKind.VIEW, f"{name}_turned", LENGTH, batch, directions * hidden, function="reshape"
    )


def stacked(graph):
    editor = GraphEditor(graph)
    editor.drop_unused()
    stack_recurrent_layers(editor)
    return editor.to_graph()


def recurrent(graph):
    return [node for node in graph.nodes if node.kind in (OpKind.LSTM, OpKind.GRU)]


@pytest.mark.parametrize("kind", [OpKind.LSTM, OpKind.GRU])
@pytest.mark.parametrize("directions", [1, 2])
def test_three_layers_are_one_node(sketch, kind, directions) -> None:
    source = "x"
    sketch.input("x", LENGTH, N, FEATURES)
    for name in "abc":
        layer(sketch, name, source, kind=kind, directions=directions)
        source = f"{name}_flat"
    graph = stacked(sketch.graph("c_flat"))
    (node,) = recurrent(graph)
    assert node.attributes["num_layers"] == 3
    names = [graph.tensors[index].name for index in node.inputs]
    assert names[0] == "x"
    assert names[-6:] == ["a_w", "a_r", "b_w", "b_r", "c_w", "c_r"]
    states = 2 if kind is OpKind.LSTM else 1
    assert [node.kind for node in graph.nodes].count(OpKind.FILL) == states
    shapes = {graph.tensors[index].shape for index in (*node.inputs[1 : 1 + states], *node.outputs[1:])}
    assert shapes == {(Dim(0, 3 * directions), N, Dim(0, HIDDEN))}


def test_last_states_are_slices_of_the_one_node_s(sketch) -> None:
    sketch.input("x", LENGTH, N, FEATURES)
    layer(sketch, "a", "x")
    layer(sketch, "b", "a_flat").node("h", OpKind.CONCAT, "a_hn b_hn", 2, N, HIDDEN, axis=0)
    graph = stacked(sketch.graph("b_flat", "h"))
    (node,) = recurrent(graph)
    slices = [item for item in graph.nodes if item.attributes.get("function") == "slice"]
    assert [item.inputs for item in slices] == [(node.outputs[1],)] * 2
    assert next(item for item in graph.nodes if item.kind is OpKind.CONCAT).inputs == tuple(
        item.outputs[0] for item in slices
    )


def test_returned_last_states_are_those_of_all_layers(sketch) -> None:
    sketch.input("x", LENGTH, N, FEATURES)
    layer(sketch, "a", "x")
    graph = stacked(layer(sketch, "b", "a_flat").graph("b_flat", "b_hn", "b_cn"))
    (node,) = recurrent(graph)
    assert graph.outputs[1:] == node.outputs[1:]
    assert graph.tensors[node.outputs[1]].shape == (Dim(0, 2), N, Dim(0, HIDDEN))


def test_a_returned_state_of_a_lower_layer_keeps_it_apart(sketch) -> None:
    sketch.input("x", LENGTH, N, FEATURES)
    layer(sketch, "a", "x")
    assert len(recurrent(stacked(layer(sketch, "b", "a_flat").graph("b_flat", "a_hn")))) == 2


def test_layers_of_different_sizes_stay_apart(sketch) -> None:
    sketch.input("x", LENGTH, N, FEATURES)
    layer(sketch, "a", "x")
    assert len(recurrent(stacked(layer(sketch, "b", "a_flat", hidden=6).graph("b_flat")))) == 2


def test_layers_of_different_kinds_stay_apart(sketch) -> None:
    sketch.input("x", LENGTH, N, FEATURES)
    layer(sketch, "a", "x")
    assert len(recurrent(stacked(layer(sketch, "b", "a_flat", kind=OpKind.GRU).graph("b_flat")))) == 2


def test_a_sequence_that_is_used_otherwise_keeps_its_layer(sketch) -> None:
    sketch.input("x", LENGTH, N, FEATURES)
    layer(sketch, "a", "x")
    graph = stacked(layer(sketch, "b", "a_flat").graph("b_flat", "a_flat"))
    assert len(recurrent(graph)) == 2


def test_a_layer_that_starts_from_a_given_state_stays_apart(sketch) -> None:
    sketch.input("x", LENGTH, N, FEATURES)
    layer(sketch, "a", "x", zeros=False)
    assert len(recurrent(stacked(layer(sketch, "b", "a_flat").graph("b_flat")))) == 2


def test_a_computation_between_layers_keeps_them_apart(sketch) -> None:
    sketch.input("x", LENGTH, N, FEATURES)
    layer(sketch, "a", "x").node("d", OpKind.RELU, "a_flat")
    assert len(recurrent(stacked(layer(sketch, "b", "d").graph("b_flat")))) == 2


def between(sketch, function: str, target, **attributes):
    """Two layers with one view more between them."""
    sketch.input("x", LENGTH, N, FEATURES)
    layer(sketch, "a", "x")
    sketch.node("v", OpKind.VIEW, "a_flat", *target, function=function, **attributes)
    return layer(sketch, "b", "v").graph("b_flat")


@pytest.mark.parametrize(
    ("function", "target", "attributes"),
    [
        ("slice", (LENGTH, N, HIDDEN), {"steps": (-1, 1, 1)}),
        ("transpose", (N, LENGTH, HIDDEN), {"perm": (1, 0, 2)}),
    ],
)
def test_a_rearranged_sequence_keeps_layers_apart(sketch, function, target, attributes) -> None:
    assert len(recurrent(stacked(between(sketch, function, target, **attributes)))) == 2


def test_a_length_that_is_the_batch_is_not_taken_for_it(sketch) -> None:
    fixed = Dim(0, LENGTH)
    sketch.input("x", LENGTH, fixed, FEATURES)
    layer(sketch, "a", "x", batch=LENGTH)
    sketch.node("v", OpKind.VIEW, "a_flat", LENGTH, LENGTH, HIDDEN, function="transpose", perm=(1, 0, 2))
    assert len(recurrent(stacked(layer(sketch, "b", "v", batch=LENGTH).graph("b_flat")))) == 2


def test_directions_that_are_not_put_side_by_side_keep_layers_apart(sketch) -> None:
    sketch.input("x", LENGTH, N, FEATURES)
    layer(sketch, "a", "x", directions=2)
    sketch.node("v", OpKind.VIEW, "a", LENGTH, N, 2 * HIDDEN, function="reshape")
    assert len(recurrent(stacked(layer(sketch, "b", "v", directions=2).graph("b_flat")))) == 2


def test_turning_forth_and_back_changes_nothing(sketch) -> None:
    sketch.input("x", LENGTH, N, FEATURES)
    layer(sketch, "a", "x")
    sketch.node("v", OpKind.VIEW, "a_flat", N, LENGTH, HIDDEN, function="transpose", perm=(1, 0, 2))
    sketch.node("w", OpKind.VIEW, "v", LENGTH, N, HIDDEN, function="transpose", perm=(1, 0, 2))
    (node,) = recurrent(stacked(layer(sketch, "b", "w").graph("b_flat")))
    assert node.attributes["num_layers"] == 2


@pytest.mark.parametrize(("first", "second"), [({}, {"is_reversed": True}), ({"variant": "Relu"}, {})])
def test_layers_that_run_otherwise_stay_apart(sketch, first, second) -> None:
    sketch.input("x", LENGTH, N, FEATURES)
    layer(sketch, "a", "x", **first)
    assert len(recurrent(stacked(layer(sketch, "b", "a_flat", **second).graph("b_flat")))) == 2


@pytest.mark.parametrize("is_viewed", [False, True])
def test_a_layer_that_is_called_twice_stays_apart(sketch, is_viewed) -> None:
    sketch.input("x", LENGTH, N, HIDDEN)
    layer(sketch, "a", "x")
    if is_viewed:
        for name in ("w", "r"):
            sketch.node(f"t_{name}", OpKind.VIEW, f"a_{name}", 1, HIDDEN, 4 * HIDDEN, function="transpose")
    graph = layer(sketch, "b", "a_flat", weights="t" if is_viewed else "a").graph("b_flat")
    assert len(recurrent(stacked(graph))) == 2
