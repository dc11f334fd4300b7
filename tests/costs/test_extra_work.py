"""Nodes that do more than their kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions, Layout, Optimizer
from dippm.costs.extra_work import (
    add_extra_work,
    add_turns,
    channel_blocks,
    joined_one_by_one,
    joins_ms,
    native_batch_norms,
    reordered_images,
    rows_with_blocks,
)
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.precision import Precision
from dippm.costs.rates import Rates
from dippm.costs.software import Software
from dippm.costs.training_step.training_graph import Phase, TrainingSettings, make_training_graph
from dippm.costs.workload import Workload
from dippm.devices import find_device
from dippm.graph import Graph, OpKind


def _plan(graph: Graph, precision: Precision = Precision.FP32) -> KernelPlan:
    return KernelPlan.from_workload(Workload.from_graph(graph, precision))


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


def _turns_ms(
    graph: Graph, rates: Rates, *, layout: Layout = Layout.NCHW, precision: Precision = Precision.FP32
) -> list[list[float]]:
    """What is added for batches of 1 and 4 on an H200, whose clock is 1,980 MHz and which has 132 multiprocessors."""
    plan = _plan(graph, precision)
    busy = np.zeros((2, len(plan.work.sizes.nodes)))
    add_turns(busy, plan, plan.work.at([1, 4]), layout=layout, device=find_device("H200"), rates=rates)
    return busy.T.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("side", "waves"), [(14, 1), (512, 1), (1024, 4)])
def test_a_thread_of_a_bilinear_resizing_goes_through_all_planes(side: int, waves: int, builder: Any) -> None:
    n, rates = builder.N, Rates(plane_cycles=198.0, gap_us=0.0)
    builder.node(OpKind.RESIZE, [builder.input(n, 96, 7, 7)], n, 96, side, side, mode="bilinear")
    ((one, four),) = _turns_ms(builder.graph(), rates)
    # The more of the cache an image fills, the longer each of its planes takes, up to twice as long.
    moved = 96 * (7 * 7 + side * side) * 4 / (find_device("H200").l2_mb * 2**20)
    assert one == pytest.approx(1e-4 * 96 * waves * (1 + min(moved, 1)))
    assert four == pytest.approx(4 * 1e-4 * 96 * waves * (1 + min(4 * moved, 1)))


@pytest.mark.parametrize(("mode", "layout"), [("nearest", Layout.NCHW), ("bilinear", Layout.NHWC)])
def test_other_resizings_have_a_thread_for_each_element(mode: str, layout: Layout, builder: Any) -> None:
    n, pointwise = builder.N, {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    x = builder.node(OpKind.CONV, [builder.input(n, 3, 8, 8), builder.weight(16, 3, 1, 1)], n, 16, 8, 8, **pointwise)
    builder.node(OpKind.RESIZE, [x], n, 16, 16, 16, mode=mode)
    assert _turns_ms(builder.graph(), Rates(plane_cycles=198.0, gap_us=0.0), layout=layout)[1] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("outputs", "groups", "layout", "precision", "turns"),
    [
        (128, 64, Layout.NHWC, Precision.AMP, 64),
        (64, 64, Layout.NHWC, Precision.AMP, 0),  # one output of each channel: a kernel for all
        (128, 32, Layout.NHWC, Precision.AMP, 0),  # groups of several channels
        (128, 64, Layout.NCHW, Precision.AMP, 0),  # PyTorch's own kernel
        (128, 64, Layout.NHWC, Precision.FP32, 0),  # a kernel for all
        (128, 64, Layout.NHWC, Precision.TF32, 0),
    ],
)
def test_a_depthwise_convolution_with_several_outputs_of_a_channel_runs_group_by_group(
    outputs: int, groups: int, layout: Layout, precision: Precision, turns: int, builder: Any
) -> None:
    n, pointwise = builder.N, {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    x = builder.node(OpKind.CONV, [builder.input(n, 3, 8, 8), builder.weight(64, 3, 1, 1)], n, 64, 8, 8, **pointwise)
    weight = builder.weight(outputs, 64 // groups, 3, 3)
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": groups}
    builder.node(OpKind.CONV, [x, weight], n, outputs, 8, 8, **square)
    found = _turns_ms(builder.graph(), Rates(group_kernel_us=5.0), layout=layout, precision=precision)
    # Nine taps.
    assert found == [[0.0, 0.0], [pytest.approx(0.005 * 1.18 * turns)] * 2]


@pytest.mark.parametrize(
    ("precision", "is_native"),
    [
        (Precision.FP32, False),
        (Precision.AMP, False),  # an image in FP16, weights in FP32
        (Precision.AMP_BF16, True),
        (Precision.BF16, True),
        (Precision.FP16, True),
    ],
)
def test_cudnn_runs_no_batch_norm_of_inference_in_bf16_and_none_with_weights_in_fp16(
    precision: Precision, is_native: bool, builder: Any
) -> None:
    n, pointwise = builder.N, {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    weight = builder.weight(16)
    x = builder.node(OpKind.CONV, [builder.input(n, 3, 8, 8), builder.weight(16, 3, 1, 1)], n, 16, 8, 8, **pointwise)
    builder.node(OpKind.BATCH_NORM, [x, weight, weight], n, 16, 8, 8)
    plan = KernelPlan.from_workload(Workload.from_graph(builder.graph(), precision))
    assert native_batch_norms(plan, precision).tolist() == ([1] if is_native else [])


def test_batch_norms_of_training_are_no_such_kernels(builder: Any) -> None:
    plan = _step_with_batch_norm(builder, 32, Precision.AMP_BF16)
    assert native_batch_norms(plan, Precision.AMP_BF16).tolist() == []


@pytest.mark.parametrize(
    ("shape", "axis", "precision", "in_vectors"),
    [
        ((16, 7, 7), 1, Precision.FP32, True),  # rows of 16 x 49 elements
        ((4, 7, 7), 1, Precision.FP32, True),
        ((4, 7, 7), 1, Precision.FP16, False),  # 392 bytes
        ((3, 7, 7), 1, Precision.FP32, False),
        ((16, 7, 7), 3, Precision.FP32, False),  # rows of 7
        ((16, 7, 8), 3, Precision.FP16, True),
    ],
)
def test_concatenations_of_whole_vectors_go_faster_than_element_by_element(
    shape: tuple[int, ...], axis: int, precision: Precision, in_vectors: bool, builder: Any
) -> None:
    n = builder.N
    joined = tuple(size * (2 if place == axis else 1) for place, size in enumerate(shape, start=1))
    builder.node(OpKind.CONCAT, [builder.input(n, *shape), builder.input(n, *shape)], n, *joined, axis=axis)
    graph = builder.graph()
    assert (joined_one_by_one(_plan(graph, precision), Layout.NCHW).tolist() == []) == in_vectors
    # Channels last, and before PyTorch had a kernel for it, none does.
    assert joined_one_by_one(_plan(graph, precision), Layout.NHWC).tolist() == [0]
    work = Workload.from_graph(graph, precision)
    before = KernelPlan.from_workload(work, software=Software.parse("torch 2.9"))
    assert joined_one_by_one(before, Layout.NCHW).tolist() == [0]


@pytest.mark.parametrize(
    ("precision", "side", "at_once"),
    [(Precision.FP16, 28, 8), (Precision.FP16, 7, 4), (Precision.FP32, 28, 4), (Precision.FP32, 7, 4)],
)
def test_every_operand_of_a_concatenation_has_the_blocks_of_the_largest_one(
    precision: Precision, side: int, at_once: int, builder: Any
) -> None:
    n, channels = builder.N, (65, *(3 for _ in range(20)))
    operands = [builder.input(n, own, side, side) for own in channels]
    builder.node(OpKind.CONCAT, operands, n, sum(channels), side, side, axis=1)
    builder.node(OpKind.RELU, [operands[0]], n, channels[0], side, side)
    plan, device = _plan(builder.graph(), precision), find_device("H200")
    batches = np.array([3, 1024])
    rates = Rates(join_block_cycles=100.0, join_cycles=1e-6)
    node, time_ms = joins_ms(plan, plan.work.at(batches), device=device, layout=Layout.NCHW, rates=rates)
    assert node.tolist() == [0]
    blocks = np.minimum(np.ceil(batches * 65 * side**2 / (128 * at_once)), 32 * device.sm_count)
    expected = 21 * blocks * 100.0 / (device.sm_count * device.boost_clock_mhz * 1e3)
    assert time_ms[:, 0] == pytest.approx(expected)
    _, of_elements = joins_ms(
        plan, plan.work.at(batches), device=device, layout=Layout.NCHW, rates=Rates(join_cycles=1.2)
    )
    one_by_one = joined_one_by_one(plan, Layout.NCHW).tolist() == [0]
    assert one_by_one == (side == 7)
    assert (of_elements > 0.0).all() == one_by_one


def test_models_without_concatenations_have_none(builder: Any) -> None:
    builder.node(OpKind.RELU, [builder.input(builder.N, 8)], builder.N, 8)
    plan = _plan(builder.graph())
    rates = Rates(join_cycles=1.2, join_block_cycles=155.0)
    node, time_ms = joins_ms(plan, plan.work.at([1, 2]), device=find_device("T4"), layout=Layout.NCHW, rates=rates)
    assert (node.tolist(), time_ms.shape) == ([], (2, 0))


@pytest.mark.parametrize(("axis", "in_vectors"), [(0, True), (1, True), (2, True), (3, False), (4, False)])
def test_tensors_that_are_stacked_are_joined_along_the_new_dimension(axis: int, in_vectors: bool, builder: Any) -> None:
    shape: list[Any] = [builder.N, 8, 16, 6]  # rows of 768, 96 and 6 elements, and of one
    stacked = [*shape[:axis], 2, *shape[axis:]]
    builder.node(OpKind.CONCAT, [builder.input(*shape), builder.input(*shape)], *stacked)
    plan = _plan(builder.graph(), Precision.FP16)
    assert (joined_one_by_one(plan, Layout.NCHW).tolist() == []) == in_vectors


def test_of_a_single_operand_all_lies_side_by_side(builder: Any) -> None:
    x = builder.input(builder.N, 8, 7, 7)
    builder.node(OpKind.CONCAT, [x], builder.N, 8, 7, 7, axis=1)
    assert joined_one_by_one(_plan(builder.graph(), Precision.FP16), Layout.NCHW).tolist() == []


def test_a_concatenation_by_elements_takes_cycles_for_each(builder: Any) -> None:
    n = builder.N
    builder.node(OpKind.CONCAT, [builder.input(n, 3, 7, 7), builder.input(n, 5, 7, 7)], n, 8, 7, 7, axis=1)
    plan, device = _plan(builder.graph()), find_device("H100")
    at = plan.work.at([2**16])
    busy_ms = np.zeros((1, 1, 1))
    conditions, rates = Conditions.parse(), [Rates(join_cycles=1.2, gap_us=2.0)]
    add_extra_work(busy_ms, plan, at, devices=[device], conditions=conditions, rates=rates)
    cycles = 1.2 * 2.0**16 * 8 * 49 / device.sm_count
    assert busy_ms.item() == pytest.approx(0.002 + cycles / (device.boost_clock_mhz * 1e3))
    add_extra_work(busy_ms, plan, at, devices=[device], conditions=conditions, rates=[Rates(join_cycles=0.6)])
    assert busy_ms.item() == pytest.approx(0.002 + cycles / (device.boost_clock_mhz * 1e3))
