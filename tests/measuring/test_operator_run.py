from __future__ import annotations

import pytest

from dippm.measuring.operator_run import KernelRun, OperatorRun


def _run(*durations_us: float) -> OperatorRun:
    kernels = [KernelRun(name="k", launched_by="aten::mm", start_us=9.0, duration_us=each) for each in durations_us]
    return OperatorRun(name="aten::linear", input_shapes=((2, 3),), scalars=("",), is_backward=False, kernels=kernels)


def test_an_operator_takes_what_its_kernels_take_without_what_lies_between() -> None:
    assert _run(1.5, 2.25).duration_us == pytest.approx(3.75)
    assert _run().duration_us == 0
