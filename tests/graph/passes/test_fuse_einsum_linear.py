from __future__ import annotations

import pytest

from dippm.graph import Dim, OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.fuse_einsum_linear import fuse_einsum_linear

N = Dim(1, 0)


def fused(sketch, equation: str, left: list, right: list, result: list, *, is_stored: bool = True):
    sketch.input("x", *left)
    sketch.weight("w", *right) if is_stored else sketch.input("w", *right)
    sketch.node("y", OpKind.MATMUL, "x w", *result, contracted=8, equation=equation)
    editor = GraphEditor(sketch.graph("y"))
    fuse_einsum_linear(editor)
    (node,) = editor.to_graph().nodes
    return node


@pytest.mark.parametrize(
    ("equation", "left", "right", "result"),
    [
        ("abc,cde->abde", [N, 5, 8], [8, 4, 6], [N, 5, 4, 6]),
        ("abde,dec->abc", [N, 5, 2, 4], [2, 4, 6], [N, 5, 6]),
    ],
)
def test_projections_are_linear_layers(sketch, equation: str, left: list, right: list, result: list) -> None:
    node = fused(sketch, equation, left, right, result)
    assert node.kind is OpKind.LINEAR
    assert node.attributes == {"contracted": 8}


@pytest.mark.parametrize(
    ("equation", "left", "right", "result", "is_stored"),
    [
        # Letters that both keep are a stack of matrices; rows come first; what is no weight is no layer.
        ("abhc,hcd->abhd", [N, 5, 4, 8], [4, 8, 6], [N, 5, 4, 6], True),
        ("abc,cd->dab", [N, 5, 8], [8, 6], [6, N, 5], True),
        ("abc,cd->abd", [N, 5, 8], [8, 6], [N, 5, 6], False),
        ("abc,c->ab", [N, 5, 8], [8], [N, 5], True),
    ],
)
def test_other_sums_stay(sketch, equation: str, left: list, right: list, result: list, is_stored: bool) -> None:
    node = fused(sketch, equation, left, right, result, is_stored=is_stored)
    assert node.kind is OpKind.MATMUL
    assert node.attributes["equation"] == equation


@pytest.mark.parametrize(("bias", "is_taken"), [([4, 6], True), ([6], False), ([5, 4, 6], False)])
@pytest.mark.parametrize("is_cast", [True, False])
def test_a_bias_of_each_output_is_the_layers(sketch, after, bias: list, is_taken: bool, is_cast: bool) -> None:
    sketch.input("x", N, 5, 8).weight("w", 8, 4, 6).weight("b", *bias)
    sketch.node("m", OpKind.MATMUL, "x w", N, 5, 4, 6, contracted=8, equation="abc,cde->abde")
    name = "h" if is_cast else "b"
    if is_cast:
        sketch.node("h", OpKind.CAST, "b")
    done = after(fuse_einsum_linear, sketch.node("y", OpKind.ADD, f"{name} m", N, 5, 4, 6).graph("y"))
    assert done[-1] == (("linear", f"x w {name}") if is_taken else ("add", f"{name} m"))
