from __future__ import annotations

from dataclasses import replace

import pytest

from dippm.costs import Precision, Workload
from dippm.costs.polynomial import evaluate
from dippm.graph import Graph, OpKind, TensorSpec


def _dropped(graph: Graph, precision=Precision.FP32):
    work = Workload.from_graph(graph, precision)
    batches = work.at([2]).batches
    return evaluate(work.dropped, batches)[0].tolist(), evaluate(work.scratch, batches)[0].tolist()


@pytest.mark.parametrize(
    ("kind", "attributes", "expected"),
    [
        (OpKind.LAYER_NORM, {"axes_size": 64}, 2 * 4 * 2 * 10),
        (OpKind.RMS_NORM, {"axes_size": 64}, 4 * 2 * 10),
        (OpKind.GROUP_NORM, {"axes_size": 320, "groups": 2}, 2 * 4 * 2 * 2),
        (OpKind.SOFTMAX, {"axes": (2,)}, 0),
        (OpKind.RELU, {}, 0),
    ],
)
def test_statistics_of_norms(builder, kind, attributes, expected):
    x = builder.input(builder.N, 10, 64)
    builder.node(kind, [x], builder.N, 10, 64, **attributes)
    assert _dropped(builder.graph()) == ([expected], [0])


def test_max_pooling_returns_an_index_for_every_maximum(builder):
    x = builder.input(builder.N, 4, 8, 8)
    builder.node(OpKind.MAX_POOL, [x], builder.N, 4, 4, 4, kernel=(2, 2))
    graph = builder.graph()
    assert _dropped(graph) == ([8 * 2 * 64], [0])
    # A graph that lists the indices itself is not given them twice.
    tensors = (*graph.tensors, TensorSpec(name="indices", shape=graph.tensors[1].shape, dtype=graph.tensors[1].dtype))
    node = replace(graph.nodes[0], outputs=(1, 2))
    assert _dropped(replace(graph, tensors=tensors, nodes=(node,))) == ([0], [0])


@pytest.mark.parametrize(("precision", "expected"), [(Precision.FP32, 0), (Precision.FP16, 4 * 2 * 12 * 50)])
def test_flash_attention_keeps_a_sum_for_every_query(builder, precision, expected):
    q, k, v = (builder.input(builder.N, 12, 50, 64) for _ in range(3))
    builder.node(OpKind.ATTENTION, [q, k, v], builder.N, 12, 50, 64)
    assert _dropped(builder.graph(), precision) == ([expected], [0])


def test_scratch_of_recurrent_layers_and_sorts(builder):
    x = builder.input(builder.N, 10, 8)
    y = builder.node(
        OpKind.GRU, [x], builder.N, 10, 32, hidden_size=16, num_layers=1, num_directions=2, batch_first=True
    )
    builder.node(OpKind.SORT, [y], builder.N, 10, 32)
    assert _dropped(builder.graph()) == ([0, 0], [4 * 3 * 2 * 16 * 2 * 10, 2 * 320 * (4 + 8)])


@pytest.mark.parametrize("function", ["searchsorted", "bucketize", "histc", "bincount"])
def test_a_search_for_places_sorts_nothing(builder, function):
    x, edges = builder.input(builder.N, 100_000), builder.input(64)
    builder.node(OpKind.SORT, [x, edges], builder.N, 100_000, function=function)
    assert _dropped(builder.graph()) == ([0], [0])
