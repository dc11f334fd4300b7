from __future__ import annotations

import pytest

from dippm.graph import Dim, OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.fold_borders import fold_borders

N = Dim(1, 0)
WINDOW = {"kernel": (3, 3), "stride": (2, 2), "dilation": (1, 1), "groups": 1}


def _bordered(sketch, height: int, width: int, *, mode: str = "constant"):
    sketch.input("x", N, 8, 16, 16).weight("w", 8, 8, 3, 3)
    sketch.node("b", OpKind.PAD, "x", N, 8, height, width, mode=mode)
    return sketch.node(
        "y", OpKind.CONV, "b w", N, 8, (height - 3) // 2 + 1, (width - 3) // 2 + 1, padding=(0, 0), **WINDOW
    )


def test_a_border_on_both_sides_is_the_convolutions_padding(sketch) -> None:
    editor = GraphEditor(_bordered(sketch, 18, 20).graph("y"))
    fold_borders(editor)
    graph = editor.to_graph()
    (conv,) = graph.nodes
    assert conv.kind is OpKind.CONV
    assert conv.attributes["padding"] == (1, 2)
    assert graph.tensors[conv.inputs[0]].name == "x"


@pytest.mark.parametrize(("height", "mode"), [(17, "constant"), (18, "reflect")])
def test_other_borders_stay(sketch, after, height: int, mode: str) -> None:
    graph = _bordered(sketch, height, 18, mode=mode).graph("y")
    assert [kind for kind, _ in after(fold_borders, graph)] == ["pad", "conv"]


def test_a_border_that_something_else_reads_stays(sketch, after) -> None:
    _bordered(sketch, 18, 18).node("z", OpKind.RELU, "b", N, 8, 18, 18)
    assert [kind for kind, _ in after(fold_borders, sketch.graph("y", "z"))] == ["pad", "conv", "relu"]
