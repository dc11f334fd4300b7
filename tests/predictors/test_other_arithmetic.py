"""Nodes that run another kernel than in FP32, in strict FP32 and in TF32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.latency import LatencyBreakdown
from dippm.costs.precision import Precision
from dippm.costs.rates import Rates
from dippm.costs.workload import Workload
from dippm.graph import OpKind
from dippm.predictors.other_arithmetic import exchange_others

IN_FP32 = np.array([[1.0, 2.0, 4.0], [2.0, 2.0, 0.0]])
SUMMED = np.array([[3.0, 3.0, 3.0], [1.0, 9.0, 5.0]])
IS_OTHER = np.array([True, False, True])


def _plan(builder: Any) -> KernelPlan:
    x = builder.input(builder.N, 8)
    for _ in range(3):
        x = builder.node(OpKind.RELU, [x], builder.N, 8)
    return KernelPlan.from_workload(Workload.from_graph(builder.graph(), Precision.FP32))


def _breakdown(busy: np.ndarray[Any, Any], half_width: float | None = None) -> LatencyBreakdown:
    widths = None if half_width is None else np.full(len(busy), half_width)
    return LatencyBreakdown.of(busy, lambda: np.zeros(busy.shape), 1.0, half_width=widths)


def _exchange(builder: Any, *, is_faster: bool | None, half_width: float | None) -> LatencyBreakdown:
    (found,) = exchange_others(
        [_breakdown(SUMMED)],
        [_breakdown(IN_FP32, half_width)],
        _plan(builder),
        is_other=IS_OTHER,
        is_faster=is_faster,
        conditions=Conditions.parse(runtime="cuda-graph"),
        host=Rates(),
        times=np.array([1.0, 1.0, 2.0]),
        summed_half_width=0.4,
    )
    return found


@pytest.mark.parametrize(
    ("is_faster", "expected"),
    [
        (False, [[3.0, 2.0, 4.0], [2.0, 2.0, 5.0]]),
        (True, [[1.0, 2.0, 3.0], [1.0, 2.0, 0.0]]),
        (None, [[3.0, 2.0, 3.0], [1.0, 2.0, 5.0]]),
    ],
)
def test_other_nodes_alone_change_and_to_one_side_where_one_is_known(
    is_faster: bool | None, expected: list[list[float]], builder: Any
) -> None:
    assert _exchange(builder, is_faster=is_faster, half_width=0.1).busy_ms.tolist() == expected


def test_the_half_width_is_by_the_time_of_both(builder: Any) -> None:
    found = _exchange(builder, is_faster=False, half_width=0.1)
    assert found.half_width == pytest.approx([0.1 + 0.3 * 7 / 9, 0.1 + 0.3 * 7 / 9])


def test_networks_that_are_less_certain_than_the_sum_stay_so(builder: Any) -> None:
    assert _exchange(builder, is_faster=False, half_width=0.7).half_width == pytest.approx([0.7, 0.7])


def test_what_knows_no_interval_knows_none_after(builder: Any) -> None:
    assert _exchange(builder, is_faster=False, half_width=None).half_width is None


def test_nodes_that_keep_their_kernel_keep_its_pauses(builder: Any) -> None:
    times = np.array([1.0, 1.0, 2.0])
    known = LatencyBreakdown.of(IN_FP32, lambda: np.zeros(IN_FP32.shape), 1.0, paused=0.25 * IN_FP32)
    (found,) = exchange_others(
        [_breakdown(SUMMED)],
        [known],
        _plan(builder),
        is_other=IS_OTHER,
        is_faster=None,
        conditions=Conditions(),
        host=Rates(),
        times=times,
        summed_half_width=0.4,
    )
    assert found.paused_once_ms(times).tolist() == [[0.0, 0.5, 0.0], [0.0, 0.5, 0.0]]
