from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.graph import Dim, OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.fuse_recurrent_cells import fuse_recurrent_cells

N = Dim(1, 0)
LSTM = [("linear", "x wx"), ("linear", "h wh"), ("binary", "gx gh c bx bh")]
GRU = [("linear", "x wx"), ("linear", "h wh"), ("binary", "gx gh h bx bh")]


def products(sketch, gates: int) -> None:
    sketch.input("x", N, 8).input("h", N, 16).input("c", N, 16)
    for name, size in (("x", 8), ("h", 16)):
        sketch.weight(f"w{name}", 16 * gates, size).weight(f"b{name}", 16 * gates)
        sketch.node(f"g{name}", OpKind.LINEAR, f"{name} w{name} b{name}", N, 16 * gates)


def split(sketch, whole: str, names: str) -> None:
    first, *others = names.split()
    sketch.node(first, OpKind.VIEW, whole, N, 16, function="split", axis=1)
    for name in others:
        sketch.tensor(name, N, 16)
    outputs = tuple(sketch.index[name] for name in names.split())
    sketch.nodes[-1] = replace(sketch.nodes[-1], outputs=outputs)


def lstm(sketch, *, order: str = "i f g o", last: str = "so t", is_bias_late: bool = False):
    products(sketch, 4)
    if is_bias_late:
        sketch.nodes[-1] = replace(sketch.nodes[-1], inputs=sketch.nodes[-1].inputs[:2])
        sketch.node("plain", OpKind.ADD, "gx gh").node("sum", OpKind.ADD, "plain bh")
    else:
        sketch.node("sum", OpKind.ADD, "gx gh")
    split(sketch, "sum", order)
    for gate in "ifo":
        sketch.node(f"s{gate}", OpKind.SIGMOID, gate)
    sketch.node("tg", OpKind.TANH, "g")
    sketch.node("kept", OpKind.MUL, "sf c").node("new", OpKind.MUL, "si tg")
    sketch.node("cell", OpKind.ADD, "kept new").node("t", OpKind.TANH, "cell").node("y", OpKind.MUL, last)
    return sketch


def gru(sketch, difference: str = "h n"):
    products(sketch, 3)
    split(sketch, "gx", "xr xz xn")
    split(sketch, "gh", "hr hz hn")
    sketch.node("sr", OpKind.ADD, "hr xr").node("r", OpKind.SIGMOID, "sr")
    sketch.node("sz", OpKind.ADD, "hz xz").node("z", OpKind.SIGMOID, "sz")
    sketch.node("gated", OpKind.MUL, "hn r").node("sn", OpKind.ADD, "xn gated").node("n", OpKind.TANH, "sn")
    sketch.node("minus", OpKind.SUB, difference).node("scaled", OpKind.MUL, "minus z")
    return sketch.node("y", OpKind.ADD, "scaled n")


@pytest.mark.parametrize("last", ["so t", "t so"])
def test_step_of_an_lstm_is_one_kernel(sketch, after, last: str) -> None:
    assert after(fuse_recurrent_cells, lstm(sketch, last=last).graph("y", "cell")) == LSTM


def test_a_bias_of_the_sum_is_the_cell_s(sketch, after) -> None:
    graph = lstm(sketch, is_bias_late=True).graph("y", "cell")
    assert after(fuse_recurrent_cells, graph) == [*LSTM[:2], ("binary", "gx gh c bh bx")]


def test_step_of_a_gru_is_one_kernel(sketch, after) -> None:
    assert after(fuse_recurrent_cells, gru(sketch).graph("y")) == GRU


@pytest.mark.parametrize(("make", "function", "saved"), [(lstm, "lstm_cell", 64), (gru, "gru_cell", 80)])
def test_a_cell_keeps_what_its_gradient_needs(sketch, make, function: str, saved: int) -> None:
    editor = GraphEditor(make(sketch).graph("y"))
    fuse_recurrent_cells(editor)
    graph = editor.to_graph()
    assert graph.nodes[-1].attributes["function"] == function
    assert graph.tensors[graph.nodes[-1].outputs[-1]].shape == (N, Dim(0, saved))
    assert graph.tensors[graph.outputs[0]].name == "y"


def test_steps_follow_each_other(sketch, after) -> None:
    lstm(sketch)
    sketch.node("a", OpKind.LINEAR, "x wx", N, 64).node("b", OpKind.LINEAR, "y wh", N, 64)
    sketch.node("sum2", OpKind.ADD, "a b")
    split(sketch, "sum2", "i2 f2 g2 o2")
    for gate in "ifo":
        sketch.node(f"s{gate}2", OpKind.SIGMOID, f"{gate}2")
    sketch.node("tg2", OpKind.TANH, "g2").node("kept2", OpKind.MUL, "sf2 cell").node("new2", OpKind.MUL, "si2 tg2")
    sketch.node("cell2", OpKind.ADD, "kept2 new2").node("t2", OpKind.TANH, "cell2").node("y2", OpKind.MUL, "so2 t2")
    found = after(fuse_recurrent_cells, sketch.graph("y2"))
    assert found == [*LSTM, ("linear", "x wx"), ("linear", "y wh"), ("binary", "a b cell")]


@pytest.mark.parametrize("order", ["f i g o", "i f o g"])
def test_gates_in_another_order_stay(sketch, after, order: str) -> None:
    graph = lstm(sketch, order=order).graph("y")
    assert len(after(fuse_recurrent_cells, graph)) == len(graph.nodes)


@pytest.mark.parametrize("output", ["so", "kept", "sum", "gx"])
def test_gates_that_are_used_elsewhere_stay(sketch, after, output: str) -> None:
    graph = lstm(sketch).graph("y", output)
    assert len(after(fuse_recurrent_cells, graph)) == len(graph.nodes)


@pytest.mark.parametrize("output", ["z", "gh", "n"])
def test_gates_of_a_gru_that_are_used_elsewhere_stay(sketch, after, output: str) -> None:
    graph = gru(sketch).graph("y", output)
    assert len(after(fuse_recurrent_cells, graph)) == len(graph.nodes)


def test_a_gate_for_the_other_side_stays(sketch, after) -> None:
    graph = gru(sketch, "n h").graph("y")
    assert len(after(fuse_recurrent_cells, graph)) == len(graph.nodes)


@pytest.mark.parametrize("make", [lstm, gru])
def test_a_step_written_out_over_layers_of_its_own_stays(sketch, after, make) -> None:
    make(sketch)
    sketch.nodes[:2] = [replace(node, scope=scope) for node, scope in zip(sketch.nodes, ("i2h", "h2h"), strict=False)]
    graph = sketch.graph("y")
    assert len(after(fuse_recurrent_cells, graph)) == len(graph.nodes)
