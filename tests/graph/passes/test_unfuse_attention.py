from __future__ import annotations

from dippm.costs import MemoryTimeline, Workload, live_memory
from dippm.graph import DType, OpKind
from dippm.graph.passes.unfuse_attention import unfuse_attention


def _attention(builder, *, mask=False, **attributes):
    n = builder.N
    query, key, value = (builder.input(n, 4, 32, 16) for _ in range(3))
    inputs = [query, key, value, *([builder.input(1, 1, 32, 32)] if mask else [])]
    return builder.graph(builder.node(OpKind.ATTENTION, inputs, n, 4, 32, 16, **attributes))


def test_scores_are_written_scaled_and_normalised(builder):
    graph = unfuse_attention(_attention(builder))
    kinds = [node.kind for node in graph.nodes]
    assert kinds == [OpKind.VIEW, OpKind.MATMUL, OpKind.MUL, OpKind.SOFTMAX, OpKind.MATMUL]


def test_a_mask_is_added(builder):
    assert OpKind.ADD in [node.kind for node in unfuse_attention(_attention(builder, mask=True)).nodes]


def test_a_causal_mask_is_one_more_operator(builder):
    assert OpKind.BINARY in [node.kind for node in unfuse_attention(_attention(builder, is_causal=True)).nodes]


def test_multiply_accumulates_stay_and_memory_grows_by_the_scores(builder):
    fused = _attention(builder)
    apart = unfuse_attention(fused)
    works = [Workload.from_graph(graph) for graph in (fused, apart)]
    assert works[0].at([8]).macs.sum() == works[1].at([8]).macs.sum()
    peaks = [live_memory(MemoryTimeline.from_workload(work), [8]).peak_bytes[0] for work in works]
    scores, result = 8 * 4 * 32 * 32 * 4, 8 * 4 * 32 * 16 * 4
    # Two score matrices at a time against the result of the fused kernel.
    assert peaks[1] - peaks[0] == 2 * scores - result


def test_a_graph_without_attention_is_returned_as_it_is(builder):
    graph = builder.graph(builder.node(OpKind.RELU, [builder.input(builder.N, 4)], builder.N, 4))
    assert unfuse_attention(graph) is graph


def test_grouped_heads_stay_fused(builder):
    n = builder.N
    query, key = builder.input(n, 8, 32, 16), builder.input(n, 2, 32, 16)
    graph = builder.graph(builder.node(OpKind.ATTENTION, [query, key, key], n, 8, 32, 16))
    assert unfuse_attention(graph) is graph


def test_dropout_of_the_weights_writes_its_mask(builder):
    graph = unfuse_attention(_attention(builder, has_dropout=True))
    (dropout,) = (node for node in graph.nodes if node.kind is OpKind.DROPOUT)
    result, mask = (graph.tensors[output] for output in dropout.outputs)
    assert (result.shape, mask.dtype) == (mask.shape, DType.BOOL)
    assert graph.nodes[-1].inputs[0] == dropout.outputs[0]
    plain, dropped = (
        live_memory(MemoryTimeline.from_workload(Workload.from_graph(each)), [8]).peak_bytes[0]
        for each in (unfuse_attention(_attention(type(builder)())), graph)
    )
    # One byte for each score.
    assert dropped - plain == 8 * 4 * 32 * 32
