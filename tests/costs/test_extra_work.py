"""Nodes that do more than their kernel."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.costs.conditions import Layout, Optimizer
from dippm.costs.extra_work import channel_blocks, reordered_images, rows_with_blocks
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import Phase, TrainingSettings, make_training_graph
from dippm.costs.workload import Workload
from dippm.graph import Graph, OpKind


def _plan(graph: Graph) -> KernelPlan:
    return KernelPlan.from_workload(Workload.from_graph(graph, Precision.FP32))


def test_a_layer_norm_has_a_block_for_each_row_and_a_softmax_has_none(builder: Any) -> None:
    n = builder.N
    x = builder.node(OpKind.LAYER_NORM, [builder.input(n, 10, 32)], n, 10, 32, normalized_shape=(32,))
    builder.node(OpKind.SOFTMAX, [x], n, 10, 32, axis=-1)
    plan = _plan(builder.graph())
    node, rows = rows_with_blocks(plan, plan.work.at([1, 4]))
    assert node.tolist() == [0]
    assert rows.tolist() == [[10.0], [40.0]]


@pytest.mark.parametrize(("side", "moved"), [(8, [2.0 * 4 * 16 * 64, 2.0 * 4 * 16 * 64 * 4]), (1, None)])
def test_a_group_norm_reads_an_image_in_another_order_unless_it_has_one_pixel(
    side: int, moved: list[float] | None, builder: Any
) -> None:
    n, pointwise = builder.N, {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    x = builder.node(
        OpKind.CONV, [builder.input(n, 3, side, side), builder.weight(16, 3, 1, 1)], n, 16, side, side, **pointwise
    )
    builder.node(OpKind.GROUP_NORM, [x], n, 16, side, side, groups=4)
    plan = _plan(builder.graph())
    node, bytes_moved = reordered_images(plan, plan.work.at([1, 4]))
    assert node.tolist() == ([] if moved is None else [1])
    assert bytes_moved.T.tolist() == ([] if moved is None else [moved])


def _step_with_batch_norm(builder: Any, channels: int, precision: Precision) -> KernelPlan:
    """A convolution, a batch norm and the loss's side of them, as a step."""
    n, weight = builder.N, builder.weight
    pointwise = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    x = builder.node(
        OpKind.CONV, [builder.input(n, 3, 8, 8), weight(channels, 3, 1, 1)], n, channels, 8, 8, **pointwise
    )
    x = builder.node(OpKind.BATCH_NORM, [x, weight(channels), weight(channels)], n, channels, 8, 8)
    graph = builder.graph(builder.node(OpKind.GLOBAL_POOL, [x], n, channels, 1, 1, output_size=(1, 1)))
    step = make_training_graph(graph, TrainingSettings(optimizer=Optimizer.SGD, precision=precision))
    work = Workload.from_graph(step.graph, step.precision)
    return KernelPlan.from_workload(work, is_backward=step.phase == Phase.BACKWARD)


@pytest.mark.parametrize(("channels", "waves"), [(32, [1.0, 1.0]), (100, [1.0, 2.0]), (250, [3.0, 5.0])])
@pytest.mark.parametrize(("precision", "slower"), [(Precision.FP32, 1.0), (Precision.AMP_BF16, 2.0)])
def test_each_channel_of_a_batch_norm_has_one_block_in_training(
    channels: int, waves: list[float], precision: Precision, slower: float, builder: Any
) -> None:
    plan = _step_with_batch_norm(builder, channels, precision)
    node, elements = channel_blocks(plan, plan.work.at([1, 4]), layout=Layout.NCHW, sms=[108, 54])
    nodes = plan.work.sizes.nodes
    assert [nodes[at].kind for at in node] == [OpKind.BATCH_NORM, OpKind.NORM_GRAD]
    for own, blocks in zip(elements, waves, strict=True):
        for batch, (forward, back) in zip((1, 4), own, strict=True):
            assert forward == pytest.approx(blocks * 64 * batch * slower)
            assert back == pytest.approx(2 * forward)


def test_batch_norms_of_images_in_nhwc_have_no_block_for_a_channel(builder: Any) -> None:
    plan = _step_with_batch_norm(builder, 32, Precision.AMP)
    node, elements = channel_blocks(plan, plan.work.at([4]), layout=Layout.NHWC, sms=[108])
    assert (node.tolist(), elements.shape) == ([], (1, 1, 0))


def test_a_batch_norm_of_inference_takes_no_statistics(builder: Any) -> None:
    n = builder.N
    weight = builder.weight(16)
    builder.node(OpKind.BATCH_NORM, [builder.input(n, 16, 8, 8), weight, weight], n, 16, 8, 8)
    plan = _plan(builder.graph())
    node, _ = channel_blocks(plan, plan.work.at([4]), layout=Layout.NCHW, sms=[108])
    assert node.tolist() == []
