"""Graphs as a release of PyTorch runs them."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.costs import MemoryTimeline, Workload, live_memory
from dippm.costs.autocast import LOWERED, RAISED
from dippm.costs.software import Software
from dippm.costs.software_graph import graph_of_release
from dippm.graph import DType, Graph, OpKind

_HEADS, _TOKENS, _WIDTH = 4, 32, 16
_FP32 = 4


def _written_out(builder: Any, *, is_guarded: bool = True, dropout: bool = False) -> Graph:
    """Attention as the reader of PyTorch modules writes it out."""
    n, scores_shape = builder.N, (builder.N, _HEADS, _TOKENS, _TOKENS)
    query, key, value = (builder.input(n, _HEADS, _TOKENS, _WIDTH) for _ in range(3))
    turned = builder.node(OpKind.VIEW, [key], n, _HEADS, _WIDTH, _TOKENS, alias_of=key, function="transpose")
    scores = builder.node(OpKind.MATMUL, [query, turned], *scores_shape, **{RAISED: True})
    weights = read = builder.node(OpKind.SOFTMAX, [scores], *scores_shape, axes=(3,))
    owner = weights
    if is_guarded:
        is_empty = builder.node(OpKind.UNARY, [scores], *scores_shape, dtype=DType.BOOL, function="isneginf")
        rows = builder.node(OpKind.REDUCE, [is_empty], n, _HEADS, _TOKENS, 1, dtype=DType.BOOL, function="all")
        zero = builder.node(OpKind.FILL, [])
        read = builder.node(
            OpKind.BINARY,
            [rows, zero, weights],
            *scores_shape,
            alias_of=weights,
            releases=[zero, rows, is_empty, scores],
            function="where",
        )
    if dropout:
        read = owner = builder.node(OpKind.DROPOUT, [read], *scores_shape)
    viewed = builder.node(OpKind.VIEW, [read], *scores_shape, alias_of=owner, function="expand")
    result = builder.node(
        OpKind.MATMUL, [viewed, value], n, _HEADS, _TOKENS, _WIDTH, releases=[weights], **{RAISED: True}
    )
    return builder.graph(result, has_lifetimes=True)


@pytest.mark.parametrize("release", [(2, 5), (2, 13)])
def test_since_2_5_it_is_as_it_was_read(builder: Any, release: tuple[int, int]) -> None:
    graph = _written_out(builder)
    assert graph_of_release(graph, Software(torch=release)) is graph


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("is_guarded", [False, True])
def test_before_it_ran_in_16_bits_without_a_search_for_rows_without_keys(
    builder: Any, is_guarded: bool, dropout: bool
) -> None:
    graph = graph_of_release(_written_out(builder, is_guarded=is_guarded, dropout=dropout), Software(torch=(2, 4)))
    kinds = [node.kind for node in graph.nodes if node.kind is not OpKind.VIEW]
    assert kinds == [OpKind.MATMUL, OpKind.SOFTMAX, *[OpKind.DROPOUT] * dropout, OpKind.MATMUL]
    assert not any(RAISED in node.attributes for node in graph.nodes)
    assert [node.kind for node in graph.nodes if node.attributes.get(LOWERED) is True] == [OpKind.SOFTMAX]


def test_weights_that_nothing_reads_are_loaded_by_every_release(builder: Any) -> None:
    builder.weight(1000, 7)
    graph = _written_out(builder)
    assert graph.parameter_count == 7000
    assert graph_of_release(graph, Software(torch=(2, 4))).parameter_count == 7000


def test_what_is_left_out_gives_back_what_it_gave_back(builder: Any) -> None:
    graph = graph_of_release(_written_out(builder), Software(torch=(2, 4)))
    softmax = next(node for node in graph.nodes if node.kind is OpKind.SOFTMAX)
    assert softmax.releases == softmax.inputs
    timeline = MemoryTimeline.from_workload(Workload.from_graph(graph))
    scores, operand = _HEADS * _TOKENS * _TOKENS * _FP32, _HEADS * _TOKENS * _WIDTH * _FP32
    # Two score matrices in the softmax; one and the result after it. The inputs are there all the time.
    assert live_memory(timeline, [1]).peak_bytes[0] == 2 * scores + 3 * operand


def test_before_fused_attention_autocast_saw_the_softmax(builder: Any) -> None:
    """A model's own products ran in 16 bits, and its softmax in FP32, as autocast has it."""
    graph = graph_of_release(_written_out(builder), Software(torch=(1, 13)))
    assert not any(RAISED in node.attributes or LOWERED in node.attributes for node in graph.nodes)


def test_a_guard_of_the_models_own_stays(builder: Any) -> None:
    n = builder.N
    x = builder.input(n, 8, 8)
    weights = builder.node(OpKind.SOFTMAX, [x], n, 8, 8, axes=(2,))
    chosen = builder.node(OpKind.BINARY, [x, x, weights], n, 8, 8, function="where")
    builder.node(OpKind.MATMUL, [chosen, x], n, 8, 8, **{RAISED: True})
    graph = graph_of_release(builder.graph(), Software(torch=(2, 4)))
    assert [node.kind for node in graph.nodes] == [OpKind.SOFTMAX, OpKind.BINARY, OpKind.MATMUL]


def test_fused_attention_is_taken_apart_for_releases_without(builder: Any) -> None:
    n = builder.N
    query, key, value = (builder.input(n, 4, 16, 32) for _ in range(3))
    builder.node(OpKind.ATTENTION, [query, key, value], n, 4, 16, 32)
    graph = builder.graph()
    assert graph_of_release(graph, Software(torch=(2, 0))) is graph
    kinds = [node.kind for node in graph_of_release(graph, Software(torch=(1, 13))).nodes]
    assert OpKind.ATTENTION not in kinds
    assert OpKind.SOFTMAX in kinds
