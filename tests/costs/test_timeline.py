"""Live bytes by hand: when each piece of memory is taken and given back."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from dippm.costs import GraphSizes, MemoryTimeline, Precision, Workload, live_memory
from dippm.costs.conditions import Optimizer
from dippm.costs.memory_events import Requests
from dippm.costs.polynomial import evaluate
from dippm.costs.timeline import FirstCalls
from dippm.costs.training_step.training_graph import Phase, TrainingSettings, make_training_graph
from dippm.graph import DType, OpKind

_CONV = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (1, 1), "groups": 1}


def _timeline(graph, precision=Precision.FP32, **options):
    return MemoryTimeline.from_workload(Workload.from_graph(graph, precision, **options))


def _live(graph, precision=Precision.FP32, batch=1, **options):
    return live_memory(_timeline(graph, precision, **options), [batch]).live_bytes[0].tolist()


def test_a_residual_connection_keeps_its_source(builder):
    x = builder.input(builder.N, 100)
    a = builder.node(OpKind.TANH, [x], builder.N, 100)
    b = builder.node(OpKind.TANH, [a], builder.N, 100)
    c = builder.node(OpKind.TANH, [b], builder.N, 100)
    d = builder.node(OpKind.ADD, [c, a], builder.N, 100)
    builder.node(OpKind.TANH, [d], builder.N, 100)
    # The input stays for the caller; b goes after its use, a only after the sum.
    assert _live(builder.graph()) == [800, 1200, 1600, 1600, 1200]


def test_views_and_in_place_results_keep_their_storage_alive(builder):
    x = builder.input(builder.N, 100)
    a = builder.node(OpKind.TANH, [x], builder.N, 100)
    view = builder.node(OpKind.VIEW, [a], builder.N, 10, 10, alias_of=a)
    builder.node(OpKind.RELU, [view], builder.N, 10, 10, alias_of=a)
    b = builder.node(OpKind.TANH, [x], builder.N, 50)
    c = builder.node(OpKind.REDUCE, [a], builder.N, 1, axes=(1,), function="sum")
    builder.node(OpKind.ADD, [b, c], builder.N, 50)
    assert _live(builder.graph()) == [800, 800, 800, 1000, 1004, 804]


def test_outputs_stay_and_unread_results_go_at_once(builder):
    x = builder.input(builder.N, 100)
    first = builder.node(OpKind.TANH, [x], builder.N, 100)
    builder.node(OpKind.TANH, [x], builder.N, 25)
    last = builder.node(OpKind.TANH, [x], builder.N, 50)
    assert _live(builder.graph(first, last)) == [800, 900, 1000]


def test_stated_lifetimes_win(builder):
    x = builder.input(builder.N, 100)
    a = builder.node(OpKind.TANH, [x], builder.N, 100)
    b = builder.node(OpKind.TANH, [a], builder.N, 100)
    c = builder.node(OpKind.TANH, [b], builder.N, 100, releases=[a, b])
    builder.node(OpKind.TANH, [c], builder.N, 100, releases=[c])
    assert _live(builder.graph(has_lifetimes=True)) == [800, 1200, 1600, 1200]


def test_what_the_caller_holds_is_never_given_back(builder):
    x = builder.input(builder.N, 100)
    weight = builder.weight(100)
    y = builder.node(OpKind.ADD, [x, weight], builder.N, 100, releases=[x, weight])
    builder.node(OpKind.TANH, [y], builder.N, 100, releases=[y, y])
    assert _live(builder.graph(has_lifetimes=True)) == [1200, 1600]


def test_weights_and_inputs_are_there_from_the_start(builder):
    x = builder.input(builder.N, 100)
    weight = builder.weight(50, 100)
    builder.tensor(50, 100, alias_of=weight)
    builder.node(OpKind.LINEAR, [x, weight], builder.N, 50)
    live = live_memory(_timeline(builder.graph()), [1, 10])
    assert live.weight_bytes.tolist() == [20_000, 20_000]
    assert live.activation_bytes.tolist() == [600, 6000]
    assert live.peak_bytes.tolist() == [20_600, 26_000]
    assert live.peak_node.tolist() == [0, 0]


def test_a_storage_larger_than_its_tensor(builder):
    x = builder.input(builder.N, 100)
    builder.node(OpKind.COPY, [x], builder.N, 100, storage=(512, 64))
    assert _live(builder.graph(), batch=3) == [1200 + 3 * 512 + 64]
    assert _live(builder.graph(), Precision.FP16, batch=3) == [600 + (3 * 512 + 64) / 2]


def test_casts_of_weights_stay_and_casts_of_activations_go(builder):
    x = builder.input(builder.N, 100)
    w = builder.weight(100, 100)
    a = builder.node(OpKind.LINEAR, [x, w], builder.N, 100)
    builder.node(OpKind.LINEAR, [a, w], builder.N, 100)
    resident, copy = 400 + 40_000, 20_000
    # First node: the input's fp16 copy (200), the weight's, and an fp16 result. Second node: no new cast.
    assert _live(builder.graph(), Precision.AMP) == [resident + 200 + copy + 200, resident + copy + 200 + 200]


def test_casts_of_weights_go_where_autocast_keeps_none(builder):
    x = builder.input(builder.N, 100)
    w = builder.weight(100, 100)
    a = builder.node(OpKind.LINEAR, [x, w], builder.N, 100)
    b = builder.node(OpKind.RELU, [a], builder.N, 100)
    builder.node(OpKind.LINEAR, [b, w], builder.N, 100)
    resident, copy = 400 + 40_000, 20_000
    # As above, but that the weight's copy is gone beside the rectifier and made again for the second layer.
    expected = [resident + 200 + copy + 200, resident + 200 + 200, resident + copy + 200 + 200]
    assert _live(builder.graph(), Precision.AMP, keeps_casts=False) == expected


def test_dropped_outputs_live_while_their_node_runs(builder):
    x = builder.input(builder.N, 4, 8, 8)
    y = builder.node(OpKind.MAX_POOL, [x], builder.N, 4, 4, 4, kernel=(2, 2))
    builder.node(OpKind.RELU, [y], builder.N, 4, 4, 4, alias_of=y)
    assert _live(builder.graph()) == [1024 + 256 + 512, 1024 + 256]


def test_who_calls_a_library_of_products_first(builder):
    x = builder.input(builder.N, 8)
    x = builder.node(OpKind.RELU, [x], builder.N, 8)
    assert _timeline(builder.graph()).first_calls == FirstCalls(blas=-1, lt=-1, backward=-1)
    x = builder.node(OpKind.MATMUL, [x, builder.weight(8, 8)], builder.N, 8)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(8, 8)], builder.N, 8)
    assert _timeline(builder.graph()).first_calls == FirstCalls(blas=1, lt=-1, backward=-1)
    builder.node(OpKind.LINEAR, [x, builder.weight(8, 8), builder.weight(8)], builder.N, 8)
    graph = builder.graph()
    assert _timeline(graph).first_calls == FirstCalls(blas=1, lt=3, backward=-1)
    step = make_training_graph(graph, TrainingSettings(optimizer=Optimizer.SGD))
    calls = _timeline(step.graph).first_calls
    products = np.flatnonzero([node.kind in (OpKind.LINEAR, OpKind.MATMUL) for node in step.graph.nodes])
    (backward,) = np.flatnonzero(step.phase[products] == Phase.BACKWARD)[:1]
    assert calls == FirstCalls(blas=1, lt=3, backward=int(products[backward]))


def test_what_a_module_named_loss_fills_begins_no_way_back(builder):
    filled = builder.node(OpKind.FILL, [], builder.N, 8)
    builder.nodes[-1] = replace(builder.nodes[-1], scope="loss", source_op="aten.ones")
    builder.node(OpKind.LINEAR, [filled, builder.weight(8, 8)], builder.N, 8)
    assert _timeline(builder.graph()).first_calls == FirstCalls(blas=1, lt=-1, backward=-1)


def test_scratch_is_workspace(builder):
    x = builder.input(builder.N, 10, dtype=DType.FLOAT32)
    builder.node(OpKind.SORT, [x], builder.N, 10)
    live = live_memory(_timeline(builder.graph()), [1])
    assert live.workspace_bytes.tolist() == [120]
    assert live.activation_bytes.tolist() == [80]


def test_no_event_takes_what_is_there_or_gives_back_what_is_not(builder):
    x = builder.input(builder.N, 100)
    a = builder.node(OpKind.TANH, [x], builder.N, 100, releases=[x])
    view = builder.node(OpKind.VIEW, [a], builder.N, 10, 10, alias_of=a)
    builder.node(OpKind.TANH, [view], builder.N, 100, releases=[a, view])
    timeline = _timeline(builder.graph(has_lifetimes=True))
    events = zip(timeline.event_node.tolist(), timeline.event_piece.tolist(), timeline.event_sign.tolist(), strict=True)
    assert [event for event in events if event[2]] == [(0, a, 1), (2, view + 1, 1), (2, a, -1)]
    assert timeline.node_start.tolist() == [0, 2, 3]


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.AMP])
def test_several_graphs_have_the_timelines_that_each_has(builder, precision):
    x = builder.input(builder.N, 8, 8, 8)
    first = builder.node(OpKind.CONV, [x, builder.weight(8, 8, 3, 3)], builder.N, 8, 8, 8, **_CONV)
    short = builder.graph()
    pooled = builder.node(OpKind.MAX_POOL, [first], builder.N, 8, 4, 4, kernel=(2, 2))
    flat = builder.node(OpKind.VIEW, [pooled], builder.N, 128, alias_of=pooled)
    builder.node(OpKind.LINEAR, [flat, builder.weight(10, 128)], builder.N, 10, releases=[first, flat])
    stated = builder.graph(has_lifetimes=True)
    settings = TrainingSettings(optimizer=Optimizer.ADAM, precision=precision)
    step = make_training_graph(stated, settings)
    graphs = [stated, short, step.graph, builder.graph()]
    together = MemoryTimeline.of_each(Workload.from_sizes(GraphSizes.from_graphs(graphs), precision))
    for timeline, graph in zip(together, graphs, strict=True):
        alone = _timeline(graph, precision)
        for field in fields(MemoryTimeline):
            own, expected = getattr(timeline, field.name), getattr(alone, field.name)
            if field.name == "bytes_of":
                own, expected = (evaluate(each, np.array([1.0, 7.0])) for each in (own, expected))
            if field.name == "requests":
                own, expected = ([getattr(each, part.name) for part in fields(Requests)] for each in (own, expected))
                assert all(map(np.array_equal, own, expected))
                continue
            assert np.array_equal(own, expected), field.name
