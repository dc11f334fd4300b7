"""Convolutions of which cuDNN runs each group by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions, Layout
from dippm.costs.device_time import busy_ms
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.precision import Precision
from dippm.costs.rates import Rates
from dippm.costs.split_convolutions import side_by_side
from dippm.costs.workload import Workload
from dippm.devices import find_device
from dippm.graph import Graph, OpKind


def _graph(builder: Any, *, read: int, written: int, groups: int) -> Graph:
    """A pointwise convolution, and a grouped one."""
    n, pointwise = builder.N, {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    image = builder.input(n, 3, 8, 8)
    x = builder.node(OpKind.CONV, [image, builder.weight(read, 3, 1, 1)], n, read, 8, 8, **pointwise)
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": groups}
    weight = builder.weight(written, read // groups, 3, 3)
    return builder.graph(builder.node(OpKind.CONV, [x, weight], n, written, 8, 8, **square))  # type: ignore[no-any-return]


def _plan(graph: Graph, precision: Precision) -> KernelPlan:
    return KernelPlan.from_workload(Workload.from_graph(graph, precision))


@pytest.mark.parametrize(
    ("read", "written", "groups", "precision", "layout", "times_faster"),
    [
        (512, 512, 8, Precision.AMP, Layout.NCHW, 1 + 8 / 12),  # 64 channels
        (512, 512, 8, Precision.BF16, Layout.NHWC, 1 + 8 / 12),
        (512, 512, 8, Precision.FP32, Layout.NCHW, None),
        (512, 512, 8, Precision.TF32, Layout.NCHW, None),
        (512, 512, 32, Precision.AMP, Layout.NCHW, None),  # 16
        (256, 512, 16, Precision.AMP, Layout.NCHW, 1 + 16 / 12),  # from 16 to 32
        (128, 256, 16, Precision.AMP, Layout.NCHW, None),  # from 8 to 16
        (6144, 6144, 96, Precision.AMP, Layout.NCHW, 5.0),
        (64, 128, 64, Precision.AMP, Layout.NHWC, 5.0),  # depthwise, two outputs of each channel
        (64, 128, 64, Precision.AMP, Layout.NCHW, None),
        (64, 64, 64, Precision.AMP, Layout.NHWC, None),
        (512, 512, 1, Precision.AMP, Layout.NCHW, None),
    ],
)
def test_wide_groups_have_kernels_of_their_own(
    read: int,
    written: int,
    groups: int,
    precision: Precision,
    layout: Layout,
    times_faster: float | None,
    builder: Any,
) -> None:
    plan = _plan(_graph(builder, read=read, written=written, groups=groups), precision)
    node, found = side_by_side(plan, plan.work.at([1, 4]), layout=layout, most=5.0)
    assert node.tolist() == ([] if times_faster is None else [1])
    assert found.tolist() == ([] if times_faster is None else [pytest.approx(times_faster)])


def test_they_run_side_by_side_in_captured_graphs_alone(builder: Any) -> None:
    plan = _plan(_graph(builder, read=512, written=512, groups=8), Precision.FP16)
    rates = Rates(side_by_side=5.0)

    def busy(runtime: str, rates: Rates) -> np.ndarray:
        return busy_ms(
            plan,
            plan.work.at([4]),
            devices=[find_device("H200")],
            conditions=Conditions.parse(precision="fp16", runtime=runtime),
            rates=rates,
            kernels=load_kernel_model(),
        )[0, 0]

    eager, captured = busy("eager", rates), busy("cuda-graph", rates)
    assert (captured / eager).tolist() == pytest.approx([1.0, 12 / 20])
    # Where none was measured nothing is said.
    nothing = replace(rates, side_by_side=0.0)
    assert np.array_equal(busy("cuda-graph", nothing), busy("eager", nothing))
