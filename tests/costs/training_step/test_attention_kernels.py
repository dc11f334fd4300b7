"""What runs around an attention's kernel, and in its place."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.costs import Precision
from dippm.costs.training_step.attention_kernels import with_attention_as_run
from dippm.costs.training_step.explicit_types import with_explicit_types
from dippm.graph import DType, OpKind


def _kinds(builder: Any, *, width: int = 64, is_by_head: bool = True, precision: str = "bf16", mask: bool = False):
    n = builder.N
    inputs = [builder.node(OpKind.RELU, [builder.input(n, 4, 128, width)], n, 4, 128, width) for _ in range(3)]
    if mask:
        inputs.append(builder.input(n, 1, 128, 128, dtype=DType.BOOL))
    builder.node(OpKind.ATTENTION, inputs, n, 4, 128, width, is_causal=False, is_by_head=is_by_head)
    graph, _ = with_explicit_types(builder.graph(), Precision(precision))
    graph = with_attention_as_run(graph)
    return graph, [node.kind for node in graph.nodes if node.kind not in (OpKind.RELU, OpKind.CAST)]


@pytest.mark.parametrize("precision", ["bf16", "fp16", "amp", "amp-bf16"])
def test_a_result_that_lies_head_by_head_is_copied(builder: Any, precision: str) -> None:
    graph, kinds = _kinds(builder, precision=precision)
    assert kinds == [OpKind.ATTENTION, OpKind.COPY]
    (attention,) = (node for node in graph.nodes if node.kind is OpKind.ATTENTION)
    written, (result,) = graph.tensors[attention.outputs[0]], graph.outputs
    assert attention.outputs[0] != result
    assert (written.shape, written.dtype) == (graph.tensors[result].shape, graph.tensors[result].dtype)


@pytest.mark.parametrize(
    "changed",
    [
        {"is_by_head": False},
        {"precision": "fp32"},
        {"mask": True},
        {"width": 264},
    ],
)
def test_nothing_else_is_copied(builder: Any, changed: dict[str, Any]) -> None:
    assert _kinds(builder, **changed)[1] == [OpKind.ATTENTION]


@pytest.mark.parametrize(
    ("precision", "width", "is_view"), [("amp", 64, True), ("bf16", 64, True), ("fp32", 64, False), ("bf16", 36, False)]
)
def test_a_result_that_lies_time_first_is_no_copy_where_it_is_read_so(
    builder: Any, precision: str, width: int, is_view: bool
) -> None:
    n = builder.N
    heads = [builder.node(OpKind.RELU, [builder.input(n, 4, 128, width)], n, 4, 128, width) for _ in range(3)]
    result = builder.node(
        OpKind.ATTENTION, heads, n, 4, 128, width, is_causal=False, is_by_head=True, is_time_first=True
    )
    turned = builder.node(OpKind.VIEW, [result], 128, n, 4, width, alias_of=result, function="permute")
    copy = builder.node(OpKind.COPY, [turned], 128, n, 4, width, releases=(result,), function="clone")
    rows = builder.node(OpKind.VIEW, [copy], 128, n, 4 * width, alias_of=copy, function="view")
    builder.node(OpKind.RELU, [rows], 128, n, 4 * width, releases=(copy,))
    graph, _ = with_explicit_types(builder.graph(), Precision(precision))
    graph = with_attention_as_run(graph)
    kinds = [node.kind for node in graph.nodes if node.kind not in (OpKind.RELU, OpKind.CAST)]
    assert (OpKind.COPY not in kinds) == is_view
    if is_view:
        assert kinds == [OpKind.ATTENTION, OpKind.VIEW, OpKind.VIEW, OpKind.VIEW]
        # The result is given back where its copy would have been.
        assert [node.releases for node in graph.nodes if node.releases] == [(result,)]
        assert graph.nodes[-1].releases == (result,)
        assert {graph.tensors[index].alias_of for index in (turned, copy, rows)} == {result}


def test_heads_of_odd_size_are_padded(builder: Any) -> None:
    graph, kinds = _kinds(builder, width=36, is_by_head=False)
    assert kinds == [OpKind.PAD, OpKind.PAD, OpKind.PAD, OpKind.ATTENTION, OpKind.COPY]
    (attention,) = (node for node in graph.nodes if node.kind is OpKind.ATTENTION)
    widths = [graph.tensors[index].shape[-1].fixed for index in (*attention.inputs, *attention.outputs)]
    assert widths == [40, 40, 40, 40]


def _grouped(builder: Any, *, groups: int = 2, is_causal: bool = True, precision: str, **marks: bool):
    n = builder.N
    query, key, value = (
        builder.node(OpKind.RELU, [builder.input(n, heads, 128, 64)], n, heads, 128, 64)
        for heads in (4, groups, groups)
    )
    builder.node(OpKind.ATTENTION, [query, key, value], n, 4, 128, 64, is_causal=is_causal, **marks)
    graph, _ = with_explicit_types(builder.graph(), Precision(precision))
    return with_attention_as_run(graph)


@pytest.mark.parametrize(("is_causal", "added"), [(True, [OpKind.FILL]), (False, [])])
def test_groups_of_heads_in_fp32_run_part_by_part(builder: Any, is_causal: bool, added: list[OpKind]) -> None:
    graph = _grouped(builder, is_causal=is_causal, precision="fp32")
    kinds = [node.kind for node in graph.nodes[3:] if node.kind is not OpKind.VIEW]
    sums = [OpKind.ADD] * len(added)
    assert kinds == [
        *[OpKind.MUL, OpKind.COPY, OpKind.COPY, OpKind.COPY, OpKind.MUL, OpKind.MATMUL, *added, *sums],
        *[OpKind.SOFTMAX, OpKind.MATMUL, OpKind.COPY],
    ]
    (weights,) = (node.outputs[0] for node in graph.nodes if node.kind is OpKind.SOFTMAX)
    assert [dim.fixed for dim in graph.tensors[weights].shape[1:]] == [4, 128, 128]
    assert graph.nodes[-1].outputs == graph.outputs


def test_a_query_that_lies_head_by_head_is_not_copied(builder: Any) -> None:
    graph = _grouped(builder, is_by_head=True, precision="fp32")
    assert sum(node.kind is OpKind.COPY for node in graph.nodes) == 3


def test_weights_that_are_dropped_out_have_a_mask(builder: Any) -> None:
    graph = _grouped(builder, is_causal=False, has_dropout=True, precision="fp32")
    position = next(place for place, node in enumerate(graph.nodes) if node.kind is OpKind.DROPOUT)
    before, dropout, after = graph.nodes[position - 1 : position + 2]
    assert (before.kind, after.kind) == (OpKind.SOFTMAX, OpKind.MATMUL)
    assert dropout.inputs == before.outputs
    assert after.inputs[0] == dropout.outputs[0]
    assert graph.tensors[dropout.outputs[1]].dtype is DType.BOOL


@pytest.mark.parametrize(("groups", "precision"), [(4, "fp32"), (2, "bf16"), (2, "amp")])
def test_other_groups_have_a_kernel(builder: Any, groups: int, precision: str) -> None:
    graph = _grouped(builder, groups=groups, precision=precision)
    assert [node.kind for node in graph.nodes if node.kind is not OpKind.CAST][3:] == [OpKind.ATTENTION]


def test_scores_of_groups_are_kept_for_the_backward_pass(builder: Any, train: Any, live: Any) -> None:
    n = builder.N

    def step(groups: int) -> float:
        heads = [
            builder.node(OpKind.LINEAR, [builder.input(n, count, 256, 16), builder.weight(16, 16)], n, count, 256, 16)
            for count in (4, groups, groups)
        ]
        out = builder.node(OpKind.ATTENTION, heads, n, 4, 256, 16, is_causal=True)
        out = builder.node(OpKind.LINEAR, [out, builder.weight(10, 16)], n, 4, 256, 10)
        graph = builder.graph(out)
        builder.nodes.clear()
        builder.inputs.clear()
        return float(live(train(graph), 16).peak_bytes[0])

    assert step(2) - step(4) > 16 * 4 * 256 * 256 * 4
