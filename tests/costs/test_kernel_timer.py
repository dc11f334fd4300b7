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
from dippm.devices import find_device
from dippm.graph import Graph, OpKind

# Without a table of element-wise kernels, so that bytes alone count.
_DEVICE = find_device("RTX 4090")
_RATES = Rates(stream=0.8, move=0.5, norm=1.0, cache_gain=2.0)


def _timer(graph: Graph, *, batch: int, rates: Rates = _RATES, precision: Precision = Precision.FP32) -> KernelTimer:
    plan = KernelPlan.from_workload(Workload.from_graph(graph, precision))
    return KernelTimer(
        plan=plan,
        at=plan.work.at([batch]),
        sheets=DeviceSheets.of((_DEVICE,), formats_on_tensor_cores(_DEVICE, Arithmetic), 0.0),
        conditions=Conditions(precision=precision),
        rates=rates,
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


@pytest.mark.parametrize("reads", [1.0, 2.0])
def test_a_group_norm_reads_its_input_as_often_as_its_rate_says(builder: Any, reads: float) -> None:
    image = (builder.N, 64, 128, 128)
    x = builder.input(*image)
    builder.node(OpKind.GROUP_NORM, [x], *image, groups=32, axes_size=2 * 128 * 128)
    builder.node(OpKind.RELU, [x], *image)
    timer = _timer(builder.graph(), batch=64, rates=replace(_RATES, group_norm_reads=reads))
    part = timer.plan.stream
    norm, relu = timer.stream(part)[0, 0][part.inverse]
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
