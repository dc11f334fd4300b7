from __future__ import annotations

import pytest

from dippm.graph import Dim, DType, OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.chosen_numbers import chosen_numbers

N = Dim(1, 0)


@pytest.mark.parametrize(("dtype", "is_choice"), [(DType.BOOL, True), (DType.FLOAT32, False)])
def test_numbers_where_a_mask_says_yes_and_another_where_it_says_no(sketch, dtype: DType, is_choice: bool) -> None:
    sketch.input("x", N, 4).input("m", N, 4, dtype=dtype).node("yes", OpKind.CAST, "m")
    sketch.node("not", OpKind.UNARY, "m", function="logical_not").node("no", OpKind.CAST, "not")
    sketch.node("kept", OpKind.MUL, "yes x").node("rest", OpKind.MUL, "no", scalar=-5.0)
    graph = sketch.node("y", OpKind.ADD, "rest kept").graph("y")
    expected = (sketch.index["x"], sketch.index["m"], -5.0) if is_choice else None
    assert chosen_numbers(GraphEditor(graph), sketch.index["y"]) == expected


def test_a_plain_sum_is_no_choice(sketch) -> None:
    graph = sketch.input("x", N, 4).input("z", N, 4).node("y", OpKind.ADD, "x z").graph("y")
    assert chosen_numbers(GraphEditor(graph), sketch.index["y"]) is None
