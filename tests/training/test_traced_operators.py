"""Times of a trace, given to the operators of the graph that was traced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dippm.costs.conditions import Optimizer
from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import Phase, TrainingGraph, TrainingSettings, make_training_graph
from dippm.graph import Graph, OpKind
from dippm.measuring.operator_run import KernelRun, OperatorRun
from dippm.training.additive_fit import AdditiveSettings, SampleTensors, TracedBatch, fit_additive
from dippm.training.additive_samples import AdditiveSamples
from dippm.training.traced_operators import MatchedOperators, TracedOperators, match_operators


def _run(name: str, *shape: int, us: float = 1.0, is_backward: bool = False) -> OperatorRun:
    kernel = KernelRun(name="kernel", launched_by=name, start_us=0.0, duration_us=us)
    return OperatorRun(name=name, input_shapes=(shape,), scalars=("",), is_backward=is_backward, kernels=[kernel])


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    n = builder.N
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    x = builder.input(n, 3, 8, 8)
    x = builder.node(OpKind.CONV, [x, builder.weight(4, 3, 3, 3)], n, 4, 8, 8, **square)  # 0
    x = builder.node(OpKind.RELU, [x], n, 4, 8, 8)  # 1
    x = builder.node(OpKind.VIEW, [x], n, 256, alias_of=x, function="view")  # 2
    x = builder.node(OpKind.COPY, [x], n, 256, function="clone")  # 3
    x = builder.node(OpKind.LINEAR, [x, builder.weight(10, 256)], n, 10)  # 4
    return builder.graph(x)  # type: ignore[no-any-return]


def test_operators_are_found_by_kind_and_size_in_their_order(graph: Graph) -> None:
    runs = [
        _run("aten::conv2d", 2, 3, 8, 8),
        _run("aten::relu_", 2, 4, 8, 8),
        _run("aten::clone", 2, 256),
        _run("aten::linear", 2, 256),
    ]
    assert match_operators(graph, 2, runs) == [
        MatchedOperators(nodes=(node,), runs=(run,)) for run, node in enumerate((0, 1, 3, 4))
    ]


def test_a_copy_that_ran_inside_of_the_product_is_told_with_it(graph: Graph) -> None:
    runs = [_run("aten::conv2d", 2, 3, 8, 8), _run("aten::relu", 2, 4, 8, 8), _run("aten::matmul", 2, 256)]
    assert match_operators(graph, 2, runs)[-1] == MatchedOperators(nodes=(3, 4), runs=(2,))


def test_another_size_is_found_by_its_kind_and_what_the_graph_lacks_is_passed_over(graph: Graph) -> None:
    runs = [
        _run("aten::copy_", 5),
        _run("aten::cudnn_convolution", 2, 8, 8, 4),
        _run("aten::relu", 2, 4, 8, 8),
        _run("aten::reshape", 2, 256),
        _run("aten::addmm", 10),
    ]
    found = {matched.runs: matched.nodes for matched in match_operators(graph, 2, runs)}
    assert found == {(1,): (0,), (2,): (1,), (3,): (3,), (4,): (4,)}


@pytest.fixture(name="step")
def _step(graph: Graph) -> TrainingGraph:
    return make_training_graph(graph, TrainingSettings(optimizer=Optimizer.SGD, precision=Precision.FP32))


_FORWARD = [
    _run("aten::conv2d", 2, 3, 8, 8),
    _run("aten::relu", 2, 4, 8, 8),
    _run("aten::clone", 2, 256),
    _run("aten::linear", 2, 256),
    _run("aten::cross_entropy_loss", 2, 10),
]
_BACKWARD = [
    _run("aten::_log_softmax_backward_data", 2, 10, is_backward=True),
    _run("aten::mm", 2, 10, is_backward=True),
    _run("aten::mm", 10, 2, is_backward=True),
    _run("aten::threshold_backward", 2, 4, 8, 8, is_backward=True),
    _run("aten::convolution_backward", 2, 4, 8, 8, is_backward=True),
]


def _kinds(step: TrainingGraph, matched: MatchedOperators) -> list[tuple[Phase, OpKind]]:
    return [(Phase(step.phase[node]), step.graph.nodes[node].kind) for node in matched.nodes]


def test_the_ways_of_a_step_are_matched_apart_and_its_update_is_one(step: TrainingGraph) -> None:
    runs = [*_FORWARD, *_BACKWARD, _run("aten::_foreach_add_"), _run("aten::_foreach_mul_")]
    found = {matched.runs: _kinds(step, matched) for matched in match_operators(step, 2, runs)}
    assert found[0,] == [(Phase.FORWARD, OpKind.CONV)]
    assert found[3,] == [(Phase.FORWARD, OpKind.LINEAR)]
    assert found[6,] == found[7,] == [(Phase.BACKWARD, OpKind.MATMUL)]
    assert found[8,] == [(Phase.BACKWARD, OpKind.ELEMENTWISE_GRAD)]
    # The image needs no gradient.
    assert found[9,][-1] == (Phase.BACKWARD, OpKind.CONV_WEIGHT_GRAD)
    assert set(found[10, 11]) == {(Phase.OPTIMIZER, OpKind.OPTIMIZER)}


def test_gradients_of_a_convolution_are_one_operator(builder: Any) -> None:
    n = builder.N
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    x = builder.node(OpKind.CONV, [builder.input(n, 3, 8, 8), builder.weight(4, 3, 3, 3)], n, 4, 8, 8, **square)
    x = builder.node(OpKind.CONV, [x, builder.weight(6, 4, 3, 3), builder.weight(6)], n, 6, 8, 8, **square)
    step = make_training_graph(
        builder.graph(builder.node(OpKind.GLOBAL_POOL, [x], n, 6, 1, 1, output_size=(1, 1))),
        TrainingSettings(optimizer=Optimizer.SGD, precision=Precision.FP32),
    )
    runs = [
        _run("aten::conv2d", 2, 3, 8, 8),
        _run("aten::convolution_backward", 2, 6, 8, 8, is_backward=True),
        _run("aten::convolution_backward", 2, 4, 8, 8, is_backward=True),
    ]
    found = {matched.runs: _kinds(step, matched) for matched in match_operators(step, 2, runs)}
    gradients = [OpKind.CONV_TRANSPOSE, OpKind.CONV_WEIGHT_GRAD, OpKind.REDUCE]
    assert [kind for _, kind in found[1,]][-3:] == gradients
    assert [kind for _, kind in found[2,]] == [OpKind.CONV_WEIGHT_GRAD]


def test_branches_of_the_way_back_are_found_in_another_order(step: TrainingGraph) -> None:
    back = [_BACKWARD[3], _BACKWARD[4], *_BACKWARD[:3]]
    found = {matched.runs: _kinds(step, matched)[-1][1] for matched in match_operators(step, 2, [*_FORWARD, *back])}
    assert found[5,] == OpKind.ELEMENTWISE_GRAD
    assert found[6,] == OpKind.CONV_WEIGHT_GRAD
    assert found[8,] == found[9,] == OpKind.MATMUL


def test_a_step_whose_update_was_not_traced_is_matched_without_it(step: TrainingGraph) -> None:
    found = match_operators(step, 2, [*_FORWARD, *_BACKWARD])
    assert not any((Phase.OPTIMIZER, OpKind.OPTIMIZER) in _kinds(step, matched) for matched in found)
    assert [_kinds(step, matched)[0][0] for matched in match_operators(step, 2, _FORWARD)] == [Phase.FORWARD] * 5


_TRACED = TracedOperators(
    operator=np.array([0, 1, 1, 0, 2]),
    group=np.array([0, 1, 1, 0, 1]),
    member_offsets=np.array([0, 3, 5]),
    log_ms=np.log(np.array([1.0, 4.0, 2.0, 8.0], dtype=np.float32)),
    share=np.array([0.2, 0.8, 0.5, 0.5], dtype=np.float32),
    group_offsets=np.array([0, 2, 4]),
)


def test_samples_are_joined_with_their_classes_and_groups_counted_on() -> None:
    batch = TracedBatch.of(_TRACED, np.array([1, 0]), np.array([0, 3]))
    assert batch.operator.tolist() == [0, 2, 3, 4, 4]
    assert batch.group.tolist() == [0, 1, 2, 3, 3]
    assert torch.exp(batch.log_ms).tolist() == pytest.approx([2.0, 8.0, 1.0, 4.0])


def test_errors_of_groups_count_by_their_share() -> None:
    batch = TracedBatch.of(_TRACED, np.array([0]), np.array([0]))
    # Two operators of 2 ms are the 4 ms of the second group; the first takes twice its millisecond.
    assert float(batch.error(torch.tensor([2.0, 2.0]))) == pytest.approx(0.2 * np.log(2.0))


def test_traces_teach_what_the_whole_does_not_tell(
    step_samples: AdditiveSamples, additive_settings: AdditiveSettings
) -> None:
    """One class of each sample takes all of the time; calls alone leave that open."""
    arrays = step_samples.arrays
    first = arrays.node_offsets[:-1]
    widest = np.array(
        [
            int(np.argmax(arrays.kernel_ms[start:stop] * arrays.count[start:stop]))
            for start, stop in zip(first, arrays.node_offsets[1:], strict=True)
        ]
    )
    count = arrays.count[first + widest]
    every = np.arange(len(step_samples) + 1)
    traced = TracedOperators(
        operator=widest,
        group=np.zeros(len(step_samples), dtype=np.int64),
        member_offsets=every,
        log_ms=np.log(0.9 * step_samples.measured_ms / count).astype(np.float32),
        share=np.full(len(step_samples), 0.9, dtype=np.float32),
        group_offsets=every,
    )
    samples = replace(step_samples, traced=traced)
    settings = replace(additive_settings, members=1, epochs=30)
    everything = np.arange(len(samples))

    def error(trained_on: AdditiveSamples) -> float:
        fitted = fit_additive(trained_on, everything, settings)
        batch = SampleTensors(samples, fitted.scale).batch(everything)
        with torch.no_grad():
            return float(batch.operator_error(batch.class_ms(fitted.members[0])))

    assert error(samples) < 0.8 * error(step_samples)


def test_without_traces_there_is_no_error_of_operators(step_samples: AdditiveSamples) -> None:
    fitted = fit_additive(step_samples, np.arange(4), AdditiveSettings(members=1, epochs=1, width=8))
    batch = SampleTensors(step_samples, fitted.scale).batch(np.arange(4))
    assert float(batch.operator_error(batch.class_ms(fitted.members[0])).detach()) == 0.0
