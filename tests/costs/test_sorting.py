"""How often sorts go over their keys, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions
from dippm.costs.device_time import busy_ms
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.rates import Rates
from dippm.costs.sorting import digit_passes
from dippm.costs.workload import Workload
from dippm.devices import find_device
from dippm.graph import DType, OpKind


@pytest.mark.parametrize(
    ("function", "dtype", "row", "rows", "passes", "moved"),
    [
        ("sort", DType.FLOAT32, 10_000, 1, 4, 2 * (4 + 8)),
        ("sort", DType.FLOAT16, 10_000, 1, 2, 2 * (2 + 8)),
        # All rows are sorted as one, then by their number, which has one digit or two.
        ("sort", DType.FLOAT32, 10_000, 256, 5, 2 * (4 + 8)),
        ("argsort", DType.INT64, 10_000, 257, 10, 2 * (8 + 8)),
        ("topk", DType.FLOAT32, 10_000, 256, 4, 4),
        # A block of threads holds a short row.
        ("sort", DType.FLOAT32, 4096, 256, 0, 0),
        ("topk", DType.FLOAT32, 4096, 256, 0, 0),
        ("nms", DType.FLOAT32, 10_000, 1, None, None),
    ],
)
def test_each_digit_is_a_pass(
    builder: Any, function: str, dtype: DType, row: int, rows: int, passes: int | None, moved: int | None
) -> None:
    x = builder.input(builder.N, row, dtype=dtype)
    builder.node(OpKind.SORT, [x], builder.N, row, dtype=dtype, function=function)
    plan = KernelPlan.from_workload(Workload.from_graph(builder.graph()))
    node, times, total = digit_passes(plan, plan.work.at([1, rows]))
    if passes is None:
        assert len(node) == 0
    else:
        assert times[1].tolist() == [passes]
        assert total[1].tolist() == [passes * moved * row * rows]


def test_a_sort_along_another_dimension_goes_over_its_rows(builder: Any) -> None:
    x = builder.input(builder.N, 10_000, 4)
    builder.node(OpKind.SORT, [x], builder.N, 10_000, 4, function="sort", axes=(1,))
    plan = KernelPlan.from_workload(Workload.from_graph(builder.graph()))
    _, times, _ = digit_passes(plan, plan.work.at([1]))
    # Four digits of 32-bit keys, and one of the number of four rows.
    assert times.tolist() == [[5]]


def test_sorting_takes_many_times_what_a_copy_takes(builder: Any) -> None:
    x = builder.input(builder.N, 2**20)
    builder.node(OpKind.SORT, [x], builder.N, 2**20, function="sort")
    builder.node(OpKind.RELU, [x], builder.N, 2**20)
    plan = KernelPlan.from_workload(Workload.from_graph(builder.graph()))
    devices = [find_device(name) for name in ("A100", "T4", "RTX 4090", "H100")]
    busy = busy_ms(
        plan, plan.work.at([16]), devices=devices, conditions=Conditions(), rates=Rates(), kernels=load_kernel_model()
    )
    assert np.all(busy[:, 0, 0] > 10.0 * busy[:, 0, 1])
