from __future__ import annotations

import pytest

from dippm.graph import Dim, OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.fuse_hard_gates import fuse_hard_gates

N = Dim(1, 0)
TURNED = {"function": "transpose", "perm": (0, 2, 3, 1)}


def limited(sketch, *, shift: float = 3.0, limit: float = 6.0):
    sketch.input("x", N, 4, 8, 8).node("s", OpKind.ADD, "x", scalar=shift)
    return sketch.node("c", OpKind.CLIP, "s", min=0.0, max=limit)


def kinds(graph) -> list[OpKind]:
    editor = GraphEditor(graph)
    fuse_hard_gates(editor)
    editor.drop_unused()
    return [node.kind for node in editor.to_graph().nodes]


@pytest.mark.parametrize(
    ("kind", "scalar"), [(OpKind.DIV, 6.0), (OpKind.MUL, 0.1666666716337204), (OpKind.MUL, 0.1666259765625)]
)
def test_a_hard_sigmoid(sketch, kind: OpKind, scalar: float) -> None:
    graph = limited(sketch).node("y", kind, "c", scalar=scalar).node("z", OpKind.RELU, "y").graph("z")
    assert kinds(graph) == [OpKind.HARD_SIGMOID, OpKind.RELU]


@pytest.mark.parametrize(("shift", "limit", "divisor"), [(2.0, 6.0, 6.0), (3.0, 5.0, 6.0), (3.0, 6.0, 5.0)])
def test_other_numbers_stay(sketch, shift: float, limit: float, divisor: float) -> None:
    graph = limited(sketch, shift=shift, limit=limit).node("y", OpKind.DIV, "c", scalar=divisor).graph("y")
    assert kinds(graph) == [OpKind.ADD, OpKind.CLIP, OpKind.DIV]


def test_a_hard_swish_of_transposed_numbers(sketch) -> None:
    limited(sketch).node("ct", OpKind.VIEW, "c", N, 8, 8, 4, **TURNED).node("g", OpKind.DIV, "ct", scalar=6.0)
    sketch.node("xt", OpKind.VIEW, "x", N, 8, 8, 4, **TURNED)
    assert kinds(sketch.node("y", OpKind.MUL, "xt g").graph("y")) == [OpKind.HARD_SWISH, OpKind.VIEW]
