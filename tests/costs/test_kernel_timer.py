"""Single kernels by hand; whole graphs are timed in test_device_time.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions
from dippm.costs.device_sheets import DeviceSheets, formats_on_tensor_cores
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.kernel_timer import KernelTimer
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.precision import Arithmetic, Precision
from dippm.costs.rates import Rates
from dippm.costs.workload import Workload
from dippm.devices import DeviceSpec, find_device
from dippm.graph import Graph, OpKind

# Without a table of element-wise kernels, so that bytes alone count.
_DEVICE = find_device("RTX 4090")
_RATES = Rates(stream=0.8, move=0.5, norm=1.0, cache_gain=2.0)


def _timer(
    graph: Graph,
    *,
    batch: int,
    rates: Rates = _RATES,
    precision: Precision = Precision.FP32,
    device: DeviceSpec = _DEVICE,
) -> KernelTimer:
    plan = KernelPlan.from_workload(Workload.from_graph(graph, precision))
    return KernelTimer(
        plan=plan,
        at=plan.work.at([batch]),
        sheets=DeviceSheets.of((device,), formats_on_tensor_cores(device, Arithmetic), (0.0,)),
        conditions=Conditions(precision=precision),
        rates=(rates,),
        kernels=load_kernel_model(),
    )


def _moving_s(moved_bytes: float) -> float:
    """Half of the L2 cache is warm and twice as fast."""
    bandwidth = _DEVICE.bandwidth_gb_s * 1e9
    warm = min(moved_bytes, 0.5 * _DEVICE.l2_mb * 2**20)
    return (warm / 2.0 + moved_bytes - warm) / bandwidth / 0.8


def test_a_copy_moves_its_bytes_more_slowly_than_an_element_wise_kernel(builder: Any) -> None:
    builder.node(OpKind.RELU, [builder.input(builder.N, 8)], builder.N, 8)
    copied = _timer(builder.graph(), batch=1).copy(np.array([[1e6, 1e9]]))
    assert copied.shape == (1, 1, 2)
    assert copied[0, 0] == pytest.approx([_moving_s(1e6) / 0.5, _moving_s(1e9) / 0.5])


def test_casts_of_autocast_move_their_bytes_as_element_wise_kernels_do(builder: Any) -> None:
    x = builder.node(OpKind.RELU, [builder.input(builder.N, 4096)], builder.N, 4096)
    builder.node(OpKind.LINEAR, [x, builder.weight(8, 4096)], builder.N, 8)
    timer = _timer(builder.graph(), batch=4096, precision=Precision.AMP)
    casts = timer.plan.casts
    seconds, of_casts = timer.stream(timer.plan.stream, casts)
    # The image in 32 bits is read and in 16 bits written; the weight is the other one.
    assert sorted(of_casts[0, 0][casts.inverse]) == pytest.approx(
        [_moving_s(6.0 * 8 * 4096), _moving_s(6.0 * 4096 * 4096)], rel=0.01
    )
    assert seconds.shape == (1, 1, 1)


@pytest.mark.parametrize("reads", [1.0, 2.0])
def test_a_group_norm_reads_its_input_as_often_as_its_rate_says(builder: Any, reads: float) -> None:
    image = (builder.N, 64, 128, 128)
    x = builder.input(*image)
    builder.node(OpKind.GROUP_NORM, [x], *image, groups=32, axes_size=2 * 128 * 128)
    builder.node(OpKind.RELU, [x], *image)
    timer = _timer(builder.graph(), batch=64, rates=replace(_RATES, group_norm_reads=reads))
    part = timer.plan.stream
    seconds, of_casts = timer.stream(part, timer.plan.casts)
    assert of_casts.shape == (1, 1, 0)
    norm, relu = seconds[0, 0][part.inverse]
    image_bytes = 4.0 * 64 * 64 * 128 * 128
    # Beside its image it writes two numbers for each group.
    assert norm == pytest.approx(_moving_s((1.0 + reads) * image_bytes), rel=1e-4)
    # Rates were fitted so that the share of an element-wise kernel counts twice, and once in what is said of others.
    assert relu == pytest.approx(_moving_s(2.0 * image_bytes) / 0.8)


def test_equal_products_are_timed_once(builder: Any) -> None:
    x = builder.input(builder.N, 4096)
    for _ in range(3):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(4096, 4096)], builder.N, 4096)
    timer = _timer(builder.graph(), batch=4096, precision=Precision.FP16)
    seconds = timer.gemm(timer.plan.gemm)
    assert seconds.shape == (1, 1, 1)
    # The share of the peak that rates say, and what tiles and waves leave idle.
    peak_s = 2.0 * 4096**3 / (_DEVICE.peak_tflops["fp16_tensor"] * 1e12)
    assert peak_s < seconds.item() < 2.0 * peak_s


def _stack_s(builder: Any, m: int, n: int, *, device: str = "RTX 4090", batch: int = 32) -> float:
    """Time of as many products of m x 4096 by 4096 x n as the batch, seconds."""
    operands = builder.input(builder.N, m, 4096), builder.input(builder.N, 4096, n)
    builder.node(OpKind.MATMUL, list(operands), builder.N, m, n)
    timer = _timer(builder.graph(), batch=batch, device=find_device(device))
    return float(timer.gemm(timer.plan.gemm).item())


@pytest.mark.parametrize(("rows", "columns"), [(1, 4096), (4096, 1)])
def test_stacks_of_products_by_a_vector_read_their_matrices_once(builder: Any, rows: int, columns: int) -> None:
    assert _stack_s(builder, rows, columns) == pytest.approx(_moving_s(4.0 * 32 * (4096**2 + 2 * 4096)))


@pytest.mark.parametrize("device", ["A100", "T4", "RTX 4090"])
def test_stacks_of_a_few_rows_take_what_was_measured_and_never_less_than_one(new_builder: Any, device: str) -> None:
    one, two, more = (_stack_s(new_builder(), rows, 4096, device=device) for rows in (1, 2, 32))
    assert 1.3 * one < two < 1.5 * more


def test_tiny_products_by_a_vector_take_a_block_of_threads_each(builder: Any) -> None:
    operands = builder.input(builder.N, 3, 3), builder.input(builder.N, 3, 1)
    builder.node(OpKind.MATMUL, list(operands), builder.N, 3, 1)
    timer = _timer(builder.graph(), batch=10_000_000)
    moved_s, blocks = _moving_s(4.0 * 15 * 1e7), 1e7 / (16 * _DEVICE.sm_count)
    assert timer.gemm(timer.plan.gemm).item() == pytest.approx(2e-6 * blocks)
    assert 2e-6 * blocks > 4.0 * moved_s


def test_a_layer_without_bias_reads_its_weights_once_for_one_row(builder: Any) -> None:
    x = builder.input(builder.N, 16384)
    builder.node(OpKind.LINEAR, [x, builder.weight(16384, 16384)], builder.N, 16384)
    builder.node(OpKind.LINEAR, [x, builder.weight(16384, 16384), builder.weight(16384)], builder.N, 16384)
    timer = _timer(builder.graph(), batch=1)
    plain, biased = timer.gemm(timer.plan.gemm)[0, 0][timer.plan.gemm.inverse]
    assert plain == pytest.approx(_moving_s(4.0 * (16384**2 + 2 * 16384)))
    assert biased > 1.2 * plain


def test_products_by_a_vector_stay_as_networks_know_them(builder: Any) -> None:
    device = find_device("H100")
    assert _stack_s(builder, 1, 4096, device="H100") > 1.2 * 4.0 * 32 * 4096**2 / (device.bandwidth_gb_s * 1e9)
