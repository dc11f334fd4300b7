from __future__ import annotations

import pytest

from dippm.graph import Dim, OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.fuse_layer_norm import WrittenNorms, fuse_layer_norm

N = Dim(1, 0)


def centred(sketch, *, axes: tuple[int, ...] = (2,), is_power: bool = True, is_twice: bool = False):
    shape = [N, 7, 8]
    for axis in axes:
        shape[axis] = 1
    sketch.input("x", N, 7, 8).weight("g", 8).weight("b", 8)
    sketch.node("m", OpKind.REDUCE, "x", *shape, function="mean", axes=axes).node("d", OpKind.SUB, "x m")
    if is_power:
        sketch.node("q", OpKind.POW, "d", scalar=2.0)
    else:
        sketch.node("q", OpKind.MUL, "d d")
    sketch.node("v", OpKind.REDUCE, "q", *shape, function="mean", axes=axes)
    sketch.node("e", OpKind.ADD, "v", scalar=1e-5).node("r", OpKind.UNARY, "e", function="sqrt")
    if is_twice:
        sketch.node("d2", OpKind.SUB, "x m")
    return sketch.node("n", OpKind.DIV, "d2 r" if is_twice else "d r", N, 7, 8)


@pytest.mark.parametrize("is_power", [True, False])
@pytest.mark.parametrize("is_twice", [True, False])
def test_scale_and_shift_are_taken_in(sketch, after, is_power: bool, is_twice: bool) -> None:
    core = centred(sketch, is_power=is_power, is_twice=is_twice)
    graph = core.node("s", OpKind.MUL, "n g").node("y", OpKind.ADD, "s b").graph("y")
    assert after(fuse_layer_norm, graph) == [("layer_norm", "x g b")]


def test_without_scale_and_shift(sketch, after) -> None:
    assert after(fuse_layer_norm, centred(sketch).graph("n")) == [("layer_norm", "x")]


def test_size_of_the_normalized_dimensions(sketch) -> None:
    editor = GraphEditor(centred(sketch).graph("n"))
    fuse_layer_norm(editor)
    assert editor.to_graph().nodes[0].attributes["axes_size"] == 8


def test_other_than_the_last_dimensions_stays(sketch, after) -> None:
    assert len(after(fuse_layer_norm, centred(sketch, axes=(1,)).graph("n"))) == 7


def test_root_mean_square(sketch, after) -> None:
    sketch.input("x", N, 7, 8).weight("g", 8).node("q", OpKind.POW, "x", scalar=2.0)
    sketch.node("v", OpKind.REDUCE, "q", N, 7, 1, function="mean", axes=(2,)).node("e", OpKind.ADD, "v", scalar=1e-6)
    sketch.node("r", OpKind.UNARY, "e", function="sqrt").node("i", OpKind.DIV, "r", scalar=1.0, scalar_first=True)
    graph = sketch.node("n", OpKind.MUL, "x i").node("y", OpKind.MUL, "g n", N, 7, 8).graph("y")
    assert after(fuse_layer_norm, graph) == [("rms_norm", "x g")]


def test_part_that_is_used_elsewhere_stays_in_place(sketch, after) -> None:
    graph = centred(sketch).graph("n", "d")
    assert [kind for kind, _ in after(fuse_layer_norm, graph)] == ["reduce", "sub", "layer_norm"]


@pytest.mark.parametrize(
    ("written", "count"),
    [
        (WrittenNorms(), 1),
        (WrittenNorms(are_layer_norms=False), 1),
        (WrittenNorms(rms_sums=frozenset({"e"})), 1),
        (WrittenNorms(rms_sums=frozenset({"other"})), 6),
    ],
)
def test_rms_norm_that_a_module_writes_out_stays(sketch, after, written: WrittenNorms, count: int) -> None:
    sketch.input("x", N, 7, 8).node("q", OpKind.POW, "x", scalar=2.0)
    sketch.node("v", OpKind.REDUCE, "q", N, 7, 1, function="mean", axes=(2,)).node("e", OpKind.ADD, "v", scalar=1e-6)
    sketch.node("r", OpKind.UNARY, "e", function="sqrt").node("i", OpKind.UNARY, "r", function="reciprocal")
    graph = sketch.node("y", OpKind.MUL, "x i", N, 7, 8).graph("y")
    assert len(after(lambda editor: fuse_layer_norm(editor, written), graph)) == count


def test_layer_norm_that_a_module_writes_out_stays(sketch, after) -> None:
    graph = centred(sketch).graph("n")
    assert len(after(lambda editor: fuse_layer_norm(editor, WrittenNorms(are_layer_norms=False)), graph)) == 7
