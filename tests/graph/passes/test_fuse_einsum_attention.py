from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from dippm.graph import DType, OpKind
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.fuse_einsum_attention import fuse_einsum_attention

HEADS, SIZE = 8, 64


def write_attention(
    builder: Any,
    *,
    keys: int = 20,
    mask: bool = False,
    scale: str = "product",
    axis: int = 3,
    swapped: bool = False,
    contracted: tuple[int, int] | None = None,
) -> None:
    first, second = contracted or (SIZE, keys)
    n = builder.N
    q = builder.input(n, 16, HEADS, SIZE)
    k, v = (builder.input(n, keys, HEADS, SIZE) for _ in range(2))
    left = builder.node(OpKind.MUL, [q], n, 16, HEADS, SIZE, scalar=0.125) if scale == "query" else q
    pair = [k, left] if swapped else [left, k]
    scores = builder.node(OpKind.MATMUL, pair, n, HEADS, 16, keys, contracted=first)
    if scale == "product":
        scores = builder.node(OpKind.DIV, [scores], n, HEADS, 16, keys, scalar=8.0)
    if mask:
        scores = builder.node(OpKind.ADD, [builder.input(n, 1, 1, keys), scores], n, HEADS, 16, keys)
    weights = builder.node(OpKind.SOFTMAX, [scores], n, HEADS, 16, keys, axes=(axis,))
    builder.node(OpKind.MATMUL, [weights, v], n, 16, HEADS, SIZE, contracted=second)


def kinds(graph: Any) -> set[OpKind]:
    return {node.kind for node in graph.nodes}


def write_scaled(builder: Any, kind: OpKind, *, factor: tuple[int, ...] | None = None, **attributes: Any) -> None:
    """Attention whose queries are multiplied by a number, or by a stored tensor of that shape."""
    n = builder.N
    q, k, v = (builder.input(n, 16, HEADS, SIZE) for _ in range(3))
    operands = [q] if factor is None else [q, builder.weight(*factor)]
    left = builder.node(kind, operands, n, 16, HEADS, SIZE, **attributes)
    scores = builder.node(OpKind.MATMUL, [left, k], n, HEADS, 16, 16, contracted=SIZE)
    weights = builder.node(OpKind.SOFTMAX, [scores], n, HEADS, 16, 16, axes=(3,))
    builder.node(OpKind.MATMUL, [weights, v], n, 16, HEADS, SIZE, contracted=16)


def write_chosen(builder: Any, *, number: float = -1e38, is_spread: bool = False, dtype: DType = DType.BOOL) -> int:
    """Attention as Keras masks it, by yes and no; gives the mask."""
    n = builder.N
    q, k, v = (builder.input(n, 16, HEADS, SIZE) for _ in range(3))
    mask = builder.input(1, 1, 16, 16, dtype=dtype) if is_spread else builder.input(n, HEADS, 16, 16, dtype=dtype)
    size = (n, HEADS, 16, 16)
    product = builder.node(OpKind.MATMUL, [q, k], *size, contracted=SIZE)
    scores = builder.node(OpKind.MUL, [product], *size, scalar=0.125)
    chosen = mask
    if is_spread:
        ones = builder.node(OpKind.FILL, [], *size, dtype=dtype)
        chosen = builder.node(OpKind.BINARY, [ones, mask], *size, dtype=dtype, function="logical_and")
    others = builder.node(OpKind.UNARY, [chosen], *size, dtype=dtype, function="logical_not")
    penalty = builder.node(
        OpKind.MUL, [builder.node(OpKind.CAST, [others], *size)], *size, scalar=number, scalar_first=True
    )
    kept = builder.node(OpKind.MUL, [builder.node(OpKind.CAST, [chosen], *size), scores], *size)
    total = builder.node(OpKind.ADD, [kept, penalty], *size)
    weights = builder.node(OpKind.SOFTMAX, [total], *size, axes=(3,))
    builder.node(OpKind.MATMUL, [weights, v], n, 16, HEADS, SIZE, contracted=16)
    return mask


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


@pytest.mark.parametrize("is_spread", [True, False])
def test_a_mask_of_yes_and_no_is_the_operator_s_own(builder: Any, is_spread: bool) -> None:
    mask = write_chosen(builder, is_spread=is_spread)
    editor = GraphEditor(builder.graph())
    fuse_einsum_attention(editor)
    editor.drop_unused()
    graph = editor.to_graph()
    assert [node.kind for node in graph.nodes] == [OpKind.VIEW] * 3 + [OpKind.ATTENTION, OpKind.VIEW]
    assert graph.nodes[3].inputs[3] == mask


@pytest.mark.parametrize(("number", "dtype"), [(1e38, DType.BOOL), (-1e38, DType.FLOAT32)])
def test_scores_that_are_mixed_otherwise_are_computed(builder: Any, number: float, dtype: DType) -> None:
    write_chosen(builder, number=number, dtype=dtype)
    assert OpKind.SOFTMAX in kinds(fused(builder))


def test_a_softmax_over_another_dimension_is_none(builder: Any) -> None:
    write_attention(builder, axis=2)
    assert OpKind.ATTENTION not in {node.kind for node in fused(builder).nodes}


def test_weights_that_somebody_else_reads_are_computed(builder: Any) -> None:
    write_attention(builder)
    softmax = builder.nodes[-2].outputs[0]
    editor = GraphEditor(builder.graph(softmax, builder.nodes[-1].outputs[0]))
    fuse_einsum_attention(editor)
    assert OpKind.SOFTMAX in {node.kind for node in editor.to_graph().nodes}


@pytest.mark.parametrize("scale", [0.125, 0.3, -1.0])
def test_any_number_is_a_scale(builder: Any, scale: float) -> None:
    write_scaled(builder, OpKind.MUL, scalar=scale, scalar_first=True)
    graph = fused(builder)
    assert OpKind.ATTENTION in kinds(graph)
    assert OpKind.MUL not in kinds(graph)


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        (OpKind.MUL, {"scalar": nan}),
        (OpKind.MUL, {"scalar": inf}),
        (OpKind.MUL, {"scalar": 0.0}),
        (OpKind.DIV, {"scalar": 8.0, "scalar_first": True}),
        (OpKind.MUL, {}),
    ],
    ids=["follows the batch", "infinite", "zero", "inverse", "of unknown value"],
)
def test_what_is_no_scale_is_computed_before(builder: Any, kind: OpKind, attributes: Any) -> None:
    write_scaled(builder, kind, **attributes)
    graph = fused(builder)
    # The operator takes in what it stands for; a query made in any other way is still a query.
    assert {OpKind.ATTENTION, kind} <= kinds(graph)
    attention = next(node for node in graph.nodes if node.kind is OpKind.ATTENTION)
    assert attention.inputs[0] != graph.inputs[0]


@pytest.mark.parametrize("factor", [(HEADS, 1), (SIZE,), (16, 1, 1), (1,)])
def test_a_scale_of_each_head_or_channel_is_computed_before(builder: Any, factor: tuple[int, ...]) -> None:
    write_scaled(builder, OpKind.MUL, factor=factor)
    assert {OpKind.ATTENTION, OpKind.MUL} <= kinds(fused(builder))


@pytest.mark.parametrize("factor", [(HEADS, 1, 1), (1, 16, 20), "input"])
def test_a_scale_of_each_head_on_the_product_is_no_attention(builder: Any, factor: Any) -> None:
    n = builder.N
    q = builder.input(n, 16, HEADS, SIZE)
    k, v = (builder.input(n, 20, HEADS, SIZE) for _ in range(2))
    scores = builder.node(OpKind.MATMUL, [q, k], n, HEADS, 16, 20, contracted=SIZE)
    scale = builder.input(1) if factor == "input" else builder.weight(*factor)
    scores = builder.node(OpKind.MUL, [scores, scale], n, HEADS, 16, 20)
    weights = builder.node(OpKind.SOFTMAX, [scores], n, HEADS, 16, 20, axes=(3,))
    builder.node(OpKind.MATMUL, [weights, v], n, 16, HEADS, SIZE, contracted=20)
    assert kinds(fused(builder)) == {OpKind.MATMUL, OpKind.MUL, OpKind.SOFTMAX}


@pytest.mark.parametrize(("first", "second"), [(SIZE * SIZE, 20), (SIZE, 20 * 64), (HEADS, 20)])
def test_sums_over_other_dimensions_are_no_attention(builder: Any, first: int, second: int) -> None:
    write_attention(builder, contracted=(first, second))
    assert OpKind.ATTENTION not in kinds(fused(builder))


@pytest.mark.parametrize("is_output", [False, True])
def test_scores_that_mixed_precision_widens_for_the_softmax(builder: Any, is_output: bool) -> None:
    n = builder.N
    q, k, v = (builder.input(n, 16, HEADS, SIZE) for _ in range(3))
    scores = builder.node(OpKind.MATMUL, [q, k], n, HEADS, 16, 16, contracted=SIZE)
    wide = builder.node(OpKind.CAST, [scores], n, HEADS, 16, 16)
    scaled = builder.node(OpKind.MUL, [wide], n, HEADS, 16, 16, scalar=0.125)
    weights = builder.node(OpKind.SOFTMAX, [scaled], n, HEADS, 16, 16, axes=(3,))
    narrow = builder.node(OpKind.CAST, [weights], n, HEADS, 16, 16)
    builder.node(OpKind.MATMUL, [narrow, v], n, 16, HEADS, SIZE, contracted=16)
    graph = builder.graph()
    editor = GraphEditor(replace(graph, outputs=(*graph.outputs, wide)) if is_output else graph)
    fuse_einsum_attention(editor)
    editor.drop_unused()
    found = kinds(editor.to_graph())
    assert found == ({*kinds(graph)} if is_output else {OpKind.VIEW, OpKind.ATTENTION})
