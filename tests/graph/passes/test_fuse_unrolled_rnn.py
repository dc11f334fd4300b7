from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.graph import Dim, OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.fuse_unrolled_rnn import fuse_unrolled_rnn

N = Dim(1, 0)
LENGTH = 4


def direction(sketch, name: str, *, kind: OpKind = OpKind.TANH, is_reversed: bool = False, start: str = "") -> None:
    """The steps of one direction over ``x``; its sequence is ``{name}y``, its last state ``{name}{LENGTH - 1}``."""
    sketch.weight(f"{name}w", 6, 8).weight(f"{name}b", 6).weight(f"{name}v", 6, 6).weight(f"{name}c", 6)
    sketch.node(f"{name}p", OpKind.LINEAR, f"x {name}w {name}b", LENGTH, N, 6)
    whole = f"{name}p"
    if is_reversed:
        whole = f"{name}f"
        sketch.node(whole, OpKind.COPY, f"{name}p", LENGTH, N, 6, function="flip")
    pieces = [f"{name}x{step}" for step in range(LENGTH)]
    sketch.node(pieces[0], OpKind.VIEW, whole, N, 6, function="unbind", axis=0)
    for piece in pieces[1:]:
        sketch.tensor(piece, N, 6)
    sketch.nodes[-1] = replace(sketch.nodes[-1], outputs=tuple(sketch.index[piece] for piece in pieces))
    state = start
    for step, piece in enumerate(pieces):
        product = f"{name}h{step}"
        if state:
            sketch.node(product, OpKind.LINEAR, f"{state} {name}v {name}c", 1, N, 6)
        else:
            sketch.weight(product, 1, 2, 6)
        state = f"{name}{step}"
        sketch.node(f"{name}a{step}", OpKind.ADD, f"{product} {piece}", 1, N, 6).node(
            state, kind, f"{name}a{step}", 1, N, 6
        )
    order = range(LENGTH)[::-1] if is_reversed else range(LENGTH)
    sketch.node(f"{name}y", OpKind.CONCAT, " ".join(f"{name}{step}" for step in order), LENGTH, N, 6, axis=0)


@pytest.mark.parametrize(("kind", "variant"), [(OpKind.TANH, None), (OpKind.RELU, "Relu")])
def test_steps_of_a_layer_are_one_operator(sketch, after, kind: OpKind, variant: str | None) -> None:
    direction(sketch.input("x", LENGTH, N, 8), "l", kind=kind)
    graph = sketch.graph("ly", "l3")
    assert after(fuse_unrolled_rnn, graph) == [("fill", ""), ("rnn", "x l3_start lw lv lb lc")]
    editor = GraphEditor(graph)
    fuse_unrolled_rnn(editor)
    layer = editor.to_graph().nodes[-1]
    sizes = {"hidden_size": 6, "num_layers": 1, "num_directions": 1, "batch_first": False}
    assert layer.attributes == (sizes if variant is None else {**sizes, "variant": variant})


def test_state_that_is_given_and_last_state_alone(sketch, after) -> None:
    direction(sketch.input("x", LENGTH, N, 8).input("s", 1, N, 6), "l", start="s")
    assert after(fuse_unrolled_rnn, sketch.graph("l3")) == [("rnn", "x s lw lv lb lc")]


def test_two_directions_are_one_layer(sketch, after) -> None:
    sketch.input("x", LENGTH, N, 8)
    direction(sketch, "l")
    direction(sketch, "r", is_reversed=True)
    sketch.node("y", OpKind.CONCAT, "ly ry", LENGTH, N, 12, axis=2)
    layer = ("rnn", "x l3_start lw lv lb lc rw rv rb rc")
    assert after(fuse_unrolled_rnn, sketch.graph("y")) == [("fill", ""), layer]
    sketch.node("last", OpKind.RELU, "r3", 1, N, 6)
    assert [kind for kind, _ in after(fuse_unrolled_rnn, sketch.graph("y", "last"))] == ["fill", "rnn", "view", "relu"]


def test_last_states_that_are_results_keep_the_directions_apart(sketch, after) -> None:
    sketch.input("x", LENGTH, N, 8)
    direction(sketch, "l")
    direction(sketch, "r", is_reversed=True)
    sketch.node("y", OpKind.CONCAT, "ly ry", LENGTH, N, 12, axis=2)
    kinds = [kind for kind, _ in after(fuse_unrolled_rnn, sketch.graph("y", "l3", "r3"))]
    assert kinds == ["fill", "rnn", "fill", "rnn", "concat"]


def test_steps_whose_states_are_used_one_by_one_stay(sketch, after) -> None:
    direction(sketch.input("x", LENGTH, N, 8), "l")
    count = len(sketch.nodes)
    assert len(after(fuse_unrolled_rnn, sketch.graph("ly", "l1"))) == count


def test_steps_of_other_weights_stay(sketch, after) -> None:
    direction(sketch.input("x", LENGTH, N, 8), "l")
    sketch.weight("other", 6, 6)
    place = next(i for i, node in enumerate(sketch.nodes) if node.outputs == (sketch.index["lh2"],))
    node = sketch.nodes[place]
    sketch.nodes[place] = replace(node, inputs=(node.inputs[0], sketch.index["other"], node.inputs[2]))
    assert len(after(fuse_unrolled_rnn, sketch.graph("ly"))) == len(sketch.nodes)


def test_a_matrix_that_is_stored_once_for_each_step_is_one(sketch, after) -> None:
    direction(sketch.input("x", LENGTH, N, 8), "l")
    for step in range(1, LENGTH):
        sketch.weight(f"copy{step}", 6, 6)
        place = next(i for i, node in enumerate(sketch.nodes) if node.outputs == (sketch.index[f"lh{step}"],))
        source, _, bias = sketch.nodes[place].inputs
        sketch.nodes[place] = replace(sketch.nodes[place], inputs=(source, sketch.index[f"copy{step}"], bias))
    assert after(fuse_unrolled_rnn, sketch.graph("ly")) == [("fill", ""), ("rnn", "x l3_start lw copy1 lb lc")]


def test_last_states_side_by_side_are_no_sequence(sketch, after) -> None:
    sketch.input("x", LENGTH, N, 8)
    direction(sketch, "l")
    direction(sketch, "r", is_reversed=True)
    sketch.node("y", OpKind.CONCAT, "l3 r3", 1, N, 12, axis=2)
    kinds = [kind for kind, _ in after(fuse_unrolled_rnn, sketch.graph("y"))]
    assert kinds == ["fill", "rnn", "fill", "rnn", "concat"]


def test_the_direction_from_the_end_may_stand_first(sketch, after) -> None:
    sketch.input("x", LENGTH, N, 8)
    direction(sketch, "r", is_reversed=True)
    direction(sketch, "l")
    sketch.node("y", OpKind.CONCAT, "ly ry", LENGTH, N, 12, axis=2)
    layer = ("rnn", "x l3_start lw lv lb lc rw rv rb rc")
    assert after(fuse_unrolled_rnn, sketch.graph("y")) == [("fill", ""), layer]
