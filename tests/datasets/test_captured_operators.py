"""Operators of a trace as a captured graph runs them."""

from __future__ import annotations

import pytest

from dippm.datasets.captured_operators import captured_ms
from dippm.measuring.operator_run import KernelRun, OperatorRun


def _run(*durations_us: float) -> OperatorRun:
    kernels = [KernelRun(name="k", launched_by="aten::relu", start_us=0.0, duration_us=each) for each in durations_us]
    return OperatorRun(name="aten::relu", input_shapes=((1,),), scalars=("",), is_backward=False, kernels=kernels)


@pytest.mark.parametrize(
    ("durations_us", "captured_us"),
    [
        ((), 0.0),
        ((2.0,), 2 * 0.9943 + 0.52),
        ((7.0,), 7 * 0.9943 + 0.07),
        ((8.0,), 8 * 0.9943),
        ((100.0, 2.0), 102 * 0.9943 + 0.52),
    ],
)
def test_each_kernel_waits_where_it_is_short(durations_us: tuple[float, ...], captured_us: float) -> None:
    assert captured_ms(_run(*durations_us)) == pytest.approx(captured_us / 1e3)
