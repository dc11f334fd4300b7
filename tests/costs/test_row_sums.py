"""Sums of rows in the gradient of an embedding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions, Mode, Optimizer
from dippm.costs.device_time import busy_ms
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.rates import Rates
from dippm.costs.row_sums import row_sum_cycles
from dippm.costs.training_step.training_graph import Phase, TrainingSettings, make_training_graph
from dippm.costs.workload import Workload
from dippm.devices import DeviceSpec, find_device
from dippm.graph import DType, Graph, OpKind

H200 = find_device("H200")


def _step(graph: Graph) -> KernelPlan:
    step = make_training_graph(graph, TrainingSettings(optimizer=Optimizer.SGD))
    work = Workload.from_graph(step.graph, step.precision)
    return KernelPlan.from_workload(work, is_backward=step.phase == Phase.BACKWARD)


def _sums_us(plan: KernelPlan, batch: int) -> list[float]:
    _, cycles = row_sum_cycles(plan.work.sizes, plan.work.at([batch]), plan.is_backward, sms=[H200.sm_count])
    return (cycles[0, 0] / H200.boost_clock_mhz).tolist()  # type: ignore[no-any-return]


def _lookup(builder: Any, *, words: int, rows: int, width: int) -> KernelPlan:
    n = builder.N
    x = builder.node(
        OpKind.EMBEDDING, [builder.weight(rows, width), builder.input(n, words, dtype=DType.INT64)], n, words, width
    )
    return _step(builder.graph(builder.node(OpKind.REDUCE, [x], n, width, axes=(1,), function="mean")))


@pytest.mark.parametrize(
    ("batch", "words", "traced_us"),
    # Kernels beside the zeros in traces of an H200: the least and the most at so many places.
    [(1, 512, (14.7, 32.7)), (96, 32, (82.4, 193.3)), (16, 256, (102.0, 108.0)), (32, 1024, (198.0, 201.0))],
)
def test_sums_take_what_traces_of_an_h200_say(
    batch: int, words: int, traced_us: tuple[float, float], builder: Any
) -> None:
    width = 448 if words == 1024 else 480
    (sums_us,) = _sums_us(_lookup(builder, words=words, rows=30_000, width=width), batch)
    assert 0.85 * traced_us[0] <= sums_us <= 1.15 * traced_us[1]


def test_more_than_3072_places_are_sorted_first(builder: Any) -> None:
    plan = _lookup(builder, words=1, rows=1000, width=64)
    few, many = _sums_us(plan, 3072)[0], _sums_us(plan, 3073)[0]
    assert few == pytest.approx(80 * 3072 / 1980)
    assert many == pytest.approx((155e3 + 1.9 * 3073 * 64 / 132) / 1980)


def test_places_of_bags_are_always_sorted_and_each_takes_what_its_bag_is_handed(builder: Any) -> None:
    n = builder.N
    table, words = builder.weight(1000, 64), builder.input(n, 8, dtype=DType.INT64)
    x = builder.node(OpKind.EMBEDDING, [table, words, builder.input(n, 8, dtype=DType.INT64)], n, 64)
    (sums_us,) = _sums_us(_step(builder.graph(x)), 2)
    assert sums_us == pytest.approx((155e3 + 1.9 * 2 * 8 * 64 / 132) / 1980)


def test_no_other_scatter_sums_rows(builder: Any) -> None:
    n = builder.N
    x, rows = builder.input(n, 8, 16), builder.input(n, 8, dtype=DType.INT64)
    builder.node(OpKind.SCATTER, [x, rows, builder.input(n, 8, 16)], n, 8, 16, function="add")
    plan = KernelPlan.from_workload(Workload.from_graph(builder.graph()))
    assert _sums_us(plan, 4) == []


@pytest.mark.parametrize("device", [find_device(name) for name in ("A100", "H100", "T4")], ids=lambda each: each.name)
def test_the_gradient_of_a_large_table_takes_little_more_than_its_zeros(device: DeviceSpec, builder: Any) -> None:
    plan = _lookup(builder, words=1, rows=2_000_000, width=128)
    rates = Rates(stream=0.9, move=0.1)
    busy = busy_ms(
        plan,
        plan.work.at([64]),
        devices=[device],
        conditions=Conditions(mode=Mode.TRAINING),
        rates=rates,
        kernels=load_kernel_model(),
    )
    (node,) = np.flatnonzero(plan.work.sizes.is_kind(OpKind.SCATTER))
    zeros_ms = 2e6 * 128 * 4 / (1e6 * device.bandwidth_gb_s)
    # Element-wise kernels were measured at 0.7 of the bandwidth of a T4.
    assert zeros_ms < busy[0, 0, node] < (1.6 if device.name == "Tesla T4" else 1.35) * zeros_ms
