from typing import Any

import pytest

from dippm.graph import OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.fuse_einsum_attention import fuse_einsum_attention

HEADS, SIZE = 8, 64


def write_attention(
    builder: Any, *, keys: int = 20, mask: bool = False, scale: str = "product", axis: int = 3, swapped: bool = False
) -> None:
    n = builder.N
    q = builder.input(n, 16, HEADS, SIZE)
    k, v = (builder.input(n, keys, HEADS, SIZE) for _ in range(2))
    left = builder.node(OpKind.MUL, [q], n, 16, HEADS, SIZE, scalar=0.125) if scale == "query" else q
    pair = [k, left] if swapped else [left, k]
    scores = builder.node(OpKind.MATMUL, pair, n, HEADS, 16, keys, contracted=SIZE)
    if scale == "product":
        scores = builder.node(OpKind.DIV, [scores], n, HEADS, 16, keys, scalar=8.0)
    if mask:
        scores = builder.node(OpKind.ADD, [builder.input(n, 1, 1, keys), scores], n, HEADS, 16, keys)
    weights = builder.node(OpKind.SOFTMAX, [scores], n, HEADS, 16, keys, axes=(axis,))
    builder.node(OpKind.MATMUL, [weights, v], n, 16, HEADS, SIZE, contracted=keys)


def fused(builder: Any) -> Any:
    editor = GraphEditor(builder.graph())
    fuse_einsum_attention(editor)
    return editor.to_graph()


@pytest.mark.parametrize("scale", ["product", "query", "none"])
@pytest.mark.parametrize("swapped", [True, False])
def test_sums_and_softmax_are_attention_between_views(builder: Any, scale: str, swapped: bool) -> None:
    write_attention(builder, scale=scale, swapped=swapped)
    graph = fused(builder)
    assert [node.kind for node in graph.nodes] == [OpKind.VIEW] * 3 + [OpKind.ATTENTION, OpKind.VIEW]
    views, attention = graph.nodes[:3], graph.nodes[3]
    assert [view.inputs[0] for view in views] == [0, 1, 2]
    shapes = [[dim.at(2) for dim in graph.tensors[index].shape] for index in (*attention.inputs, *attention.outputs)]
    assert shapes == [[2, HEADS, 16, SIZE], [2, HEADS, 20, SIZE], [2, HEADS, 20, SIZE], [2, HEADS, 16, SIZE]]
    assert [dim.at(2) for dim in graph.tensors[graph.outputs[0]].shape] == [2, 16, HEADS, SIZE]


def test_a_mask_is_kept(builder: Any) -> None:
    write_attention(builder, mask=True)
    attention = fused(builder).nodes[3]
    assert (attention.kind, attention.inputs[3]) == (OpKind.ATTENTION, 3)


def test_a_softmax_over_another_dimension_is_none(builder: Any) -> None:
    write_attention(builder, axis=2)
    assert OpKind.ATTENTION not in {node.kind for node in fused(builder).nodes}


def test_weights_that_somebody_else_reads_are_computed(builder: Any) -> None:
    write_attention(builder)
    softmax = builder.nodes[-2].outputs[0]
    editor = GraphEditor(builder.graph(softmax, builder.nodes[-1].outputs[0]))
    fuse_einsum_attention(editor)
    assert OpKind.SOFTMAX in {node.kind for node in editor.to_graph().nodes}
