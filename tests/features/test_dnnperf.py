"""The features of DNNPerf, every column that is not 0 worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dippm.costs.conditions import Optimizer
from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import Phase, TrainingGraph, TrainingSettings, make_training_graph
from dippm.devices import find_device
from dippm.errors import UnsupportedError, UsageError
from dippm.features.dnnperf import (
    COST_COLUMNS,
    EDGE_COLUMNS,
    NODE_COLUMNS,
    OPERATORS,
    compute_dnnperf_features,
)
from dippm.graph import OpKind, TensorRole

_DEVICE = find_device("A100-SXM4-40GB")


@pytest.fixture
def step(builder):
    """A dense layer seen through a view, ReLU, their backward twins, and an update: written down by hand."""
    n = builder.N
    x = builder.input(n, 6)
    weight = builder.weight(4, 6)
    dense = builder.node(OpKind.LINEAR, [x, weight], n, 4)
    view = builder.node(OpKind.VIEW, [dense], n, 2, 2, alias_of=dense)
    result = builder.node(OpKind.RELU, [view], n, 2, 2)
    of_view = builder.node(OpKind.ELEMENTWISE_GRAD, [result, result], n, 2, 2, function="relu")
    of_dense = builder.node(OpKind.VIEW, [of_view], n, 4, alias_of=of_view)
    turned = builder.node(OpKind.VIEW, [of_dense], 4, n, alias_of=of_view)
    of_weight = builder.node(OpKind.MATMUL, [turned, x], 4, 6)
    builder.tensors[of_weight] = replace(builder.tensors[of_weight], role=TensorRole.GRADIENT)
    builder.node(OpKind.OPTIMIZER, [weight, of_weight], 4, 6, alias_of=weight, function="add", updated=1)
    phases = [Phase.FORWARD] * 3 + [Phase.BACKWARD] * 4 + [Phase.OPTIMIZER]
    return TrainingGraph(
        graph=builder.graph(),
        phase=np.array(phases, dtype=np.int8),
        twin=np.array([-1, -1, -1, 2, 1, 0, 0, -1]),
        settings=TrainingSettings(),
    )


def _nodes(sample):
    """Kind of each node, and its values that are not 0 in plain units, the device's left out."""
    result = []
    for operator, row in zip(sample.operators, np.expm1(sample.node_values.astype(np.float64)), strict=True):
        values = {name: value for name, value in zip(NODE_COLUMNS, row, strict=True) if value > 1e-9}
        result.append((OPERATORS[operator], values))
    return result


def test_nodes_worked_out_by_hand(step):
    (sample,) = compute_dnnperf_features(step, [3], None)
    # A float is 4 bytes, the batch is 3; a product counts two operations for each multiply-accumulate.
    activation, weights = 3 * 4 * 4, 4 * 6 * 4
    wanted = [
        (OpKind.LINEAR, {
            "input_channels": 6, "output_channels": 4, "input_bytes": 3 * 6 * 4, "output_bytes": activation,
            "weight_bytes": weights, "weight_gradient_bytes": weights, "output_gradient_bytes": activation,
            "flops": 2 * 3 * 4 * 6,
        }),
        (OpKind.RELU, {
            "input_channels": 2, "output_channels": 2, "input_bytes": activation, "output_bytes": activation,
            "output_gradient_bytes": activation, "flops": 12,
        }),
        (OpKind.ELEMENTWISE_GRAD, {
            "input_channels": 2, "output_channels": 2, "input_bytes": 2 * activation, "output_bytes": activation,
            "output_gradient_bytes": activation,
        }),
        (OpKind.MATMUL, {
            "input_channels": 3, "output_channels": 6, "input_bytes": activation + 3 * 6 * 4,
            "weight_gradient_bytes": weights, "output_gradient_bytes": activation, "flops": 2 * 3 * 4 * 6,
        }),
        (OpKind.OPTIMIZER, {
            "input_channels": 6, "output_channels": 6, "weight_bytes": weights, "weight_gradient_bytes": weights,
            "output_bytes": weights,
        }),
    ]  # fmt: skip
    found = _nodes(sample)
    assert [kind for kind, _ in found] == [kind for kind, _ in wanted]
    for (kind, values), (_, expected) in zip(found, wanted, strict=True):
        # How many operations an element-wise gradient or an update takes is the cost rules' to say.
        if kind in (OpKind.ELEMENTWISE_GRAD, OpKind.OPTIMIZER):
            values.pop("flops", None)
        assert values == pytest.approx(expected, rel=1e-5), kind


def test_edges_pass_views_and_tell_direction_and_size(step):
    (sample,) = compute_dnnperf_features(step, [3], _DEVICE)
    assert sample.edge_index.T.tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]
    values = sample.edge_values.astype(np.float64)
    assert values[:, EDGE_COLUMNS.index("is_forward")].tolist() == [1, 0, 0, 0]
    assert values[:, EDGE_COLUMNS.index("is_backward")].tolist() == [0, 1, 1, 1]
    assert np.expm1(values[:, EDGE_COLUMNS.index("tensor_bytes")]) == pytest.approx([48, 48, 48, 96], rel=1e-5)
    assert np.expm1(values[:, EDGE_COLUMNS.index("bandwidth_gb_s")]) == pytest.approx(_DEVICE.bandwidth_gb_s, rel=1e-5)


def test_several_tensors_between_two_nodes_are_one_edge(builder):
    n = builder.N
    x = builder.input(n, 8)
    value = builder.node(OpKind.RELU, [x], n, 8)
    halves = [builder.node(OpKind.VIEW, [value], n, 4, alias_of=value) for _ in range(2)]
    builder.node(OpKind.ADD, [*halves, value], n, 4)
    graph = builder.graph()
    step = TrainingGraph(
        graph=graph,
        phase=np.zeros(len(graph.nodes), dtype=np.int8),
        twin=np.full(len(graph.nodes), -1),
        settings=TrainingSettings(),
    )
    (sample,) = compute_dnnperf_features(step, [2], None)
    assert sample.edge_index.tolist() == [[0], [1]]
    assert np.expm1(sample.edge_values[0, EDGE_COLUMNS.index("tensor_bytes")]) == pytest.approx(2 * 16 * 4, rel=1e-5)


def test_the_device_is_on_every_node_and_unknown_ones_are_zero(step):
    at = [NODE_COLUMNS.index("device_tflops"), NODE_COLUMNS.index("device_memory_mb")]
    half = replace(step, settings=TrainingSettings(precision=Precision.AMP))
    for given, rate in ((step, "fp32"), (half, "fp16_tensor")):
        (sample,) = compute_dnnperf_features(given, [3], _DEVICE)
        wanted = np.tile([_DEVICE.peak_tflops[rate], _DEVICE.memory_mb], (5, 1))
        assert np.expm1(sample.node_values[:, at].astype(np.float64)) == pytest.approx(wanted, rel=1e-4)
    (unknown,) = compute_dnnperf_features(step, [3], None)
    assert not unknown.node_values[:, at].any()
    assert not unknown.edge_values[:, EDGE_COLUMNS.index("bandwidth_gb_s")].any()


@pytest.fixture
def network(builder):
    """A convolution in groups, batch norm and a dense layer."""
    n = builder.N
    window = {"kernel": (3, 5), "stride": (2, 1), "padding": (1, 2), "dilation": (1, 3), "groups": 2}
    x = builder.input(n, 4, 16, 16)
    value = builder.node(OpKind.CONV, [x, builder.weight(8, 2, 3, 5)], n, 8, 8, 8, **window)
    statistics = [builder.weight(8), builder.weight(8)]
    statistics += [builder.weight(8, role=TensorRole.BUFFER) for _ in range(2)]
    value = builder.node(OpKind.BATCH_NORM, [value, *statistics], n, 8, 8, 8, axes_size=8)
    value = builder.node(OpKind.RELU, [value], n, 8, 8, 8)
    value = builder.node(OpKind.GLOBAL_POOL, [value], n, 8, output_size=1)
    builder.node(OpKind.LINEAR, [value, builder.weight(10, 8), builder.weight(10)], n, 10)
    return builder.graph()


def test_a_mirrored_network(network):
    training = make_training_graph(network, TrainingSettings(optimizer=Optimizer.MOMENTUM))
    (sample,) = compute_dnnperf_features(training, [4], _DEVICE)
    nodes = _nodes(sample)
    kinds = [kind for kind, _ in nodes]
    convolution = dict(nodes)[OpKind.CONV]
    window = {"kernel_height": 3, "kernel_width": 5, "stride": 2, "padding": 2, "dilation": 3, "groups": 2}
    for name, value in {**window, "input_channels": 4, "output_channels": 8}.items():
        assert convolution[name] == pytest.approx(value, rel=1e-5)
    gradient = dict(nodes)[OpKind.CONV_WEIGHT_GRAD]
    assert {name: gradient[name] for name in window} == pytest.approx(window, rel=1e-5)
    for name in ("flops", "weight_gradient_bytes", "output_gradient_bytes"):
        assert gradient[name] == pytest.approx(convolution[name], rel=1e-5)
    assert OpKind.VIEW not in kinds
    assert kinds.count(OpKind.NORM_GRAD) == 1
    # Data only ever flow on, and every node but the first has some.
    source, target = sample.edge_index
    assert (source < target).all()
    assert set(range(1, len(kinds))) - set(target.tolist()) <= {
        place for place, kind in enumerate(kinds) if kind in (OpKind.FILL, OpKind.OPTIMIZER)
    }
    assert len(np.unique(sample.edge_index, axis=1).T) == len(source)


def test_all_batches_at_once_are_each_alone(network):
    training = make_training_graph(network, TrainingSettings())
    batches = [1, 7, 64]
    together = compute_dnnperf_features(training, batches, _DEVICE)
    for batch, sample in zip(batches, together, strict=True):
        (alone,) = compute_dnnperf_features(training, [batch], _DEVICE)
        np.testing.assert_array_equal(sample.node_values, alone.node_values)
        np.testing.assert_array_equal(sample.edge_values, alone.edge_values)
    assert np.isfinite(np.concatenate([sample.node_values for sample in together])).all()
    assert not np.array_equal(together[0].node_values, together[1].node_values)


def test_every_kind_but_views_has_its_column_and_costs_are_named():
    assert set(OPERATORS) == set(OpKind) - {OpKind.VIEW}
    assert set(NODE_COLUMNS) | set(EDGE_COLUMNS) >= COST_COLUMNS


def test_batches_that_do_not_hold_are_refused(step):
    with pytest.raises(UsageError) as caught:
        compute_dnnperf_features(step, [0], None)
    assert caught.value.code == "batch.invalid"
    fixed = replace(step, graph=replace(step.graph, fixed_batch=2, fixed_batch_reason="A loop runs over it."))
    with pytest.raises(UnsupportedError, match="A loop runs over it") as refused:
        compute_dnnperf_features(fixed, [2, 3], None)
    assert refused.value.code == "graph.fixed_batch"
    assert len(compute_dnnperf_features(fixed, [2], None)) == 1
