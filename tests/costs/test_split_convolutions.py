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
from dippm.costs.latency import launched_ms
from dippm.costs.precision import Precision
from dippm.costs.rates import Rates
from dippm.costs.software import Software
from dippm.costs.split_convolutions import group_launch_us, run_by_group, share_side_by_side
from dippm.costs.workload import Workload
from dippm.devices import find_device
from dippm.graph import Graph, OpKind


def _graph(builder: Any, *, read: int, written: int, groups: int) -> Graph:
    """A pointwise convolution, a grouped one and a ReLU."""
    n, pointwise = builder.N, {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    image = builder.input(n, 3, 8, 8)
    x = builder.node(OpKind.CONV, [image, builder.weight(read, 3, 1, 1)], n, read, 8, 8, **pointwise)
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": groups}
    weight = builder.weight(written, read // groups, 3, 3)
    x = builder.node(OpKind.CONV, [x, weight], n, written, 8, 8, **square)
    return builder.graph(builder.node(OpKind.RELU, [x], n, written, 8, 8))  # type: ignore[no-any-return]


def _plan(graph: Graph, precision: Precision) -> KernelPlan:
    return KernelPlan.from_workload(Workload.from_graph(graph, precision))


@pytest.mark.parametrize(
    ("read", "written", "groups", "precision", "layout", "split"),
    [
        (512, 512, 8, Precision.AMP, Layout.NCHW, [8, 8]),  # 64 channels
        (512, 512, 8, Precision.BF16, Layout.NHWC, [8, 8]),
        (512, 512, 8, Precision.FP32, Layout.NCHW, []),
        (512, 512, 8, Precision.TF32, Layout.NCHW, []),
        (512, 512, 32, Precision.AMP, Layout.NCHW, []),  # 16
        (96, 96, 6, Precision.AMP, Layout.NCHW, [6, 6]),  # 16 in few groups
        (112, 112, 7, Precision.AMP, Layout.NCHW, []),  # in one more
        (90, 90, 6, Precision.AMP, Layout.NCHW, []),  # 15
        (256, 512, 16, Precision.AMP, Layout.NCHW, [16, 16]),  # from 16 to 32
        (128, 256, 16, Precision.AMP, Layout.NCHW, []),  # from 8 to 16
        (656, 656, 8, Precision.AMP, Layout.NCHW, [8, 8]),  # 82
        (664, 664, 8, Precision.AMP, Layout.NCHW, [8, 0]),  # 83: by one kernel in calls of four
        (664, 664, 4, Precision.AMP, Layout.NCHW, [4, 4]),
        (6144, 6144, 96, Precision.AMP, Layout.NCHW, [96, 96]),
        (64, 128, 64, Precision.AMP, Layout.NHWC, [64, 64]),  # depthwise, two outputs of each channel
        (64, 128, 64, Precision.AMP, Layout.NCHW, []),
        (64, 64, 64, Precision.AMP, Layout.NHWC, []),
        (512, 512, 1, Precision.AMP, Layout.NCHW, []),
    ],
)
def test_wide_groups_have_kernels_of_their_own(
    read: int, written: int, groups: int, precision: Precision, layout: Layout, split: list[int], builder: Any
) -> None:
    plan = _plan(_graph(builder, read=read, written=written, groups=groups), precision)
    work = plan.work.at([3, 4]).convolution
    node, found = run_by_group(plan, work, layout=layout)
    assert node.tolist() == ([1] if split else [])
    assert found.T.tolist() == ([split] if split else [])
    # The host launches what is split at any batch.
    assert (group_launch_us(plan, layout)[1] > 0.0) == bool(split and split[1])


@pytest.mark.parametrize(
    ("groups", "group_us", "share"),
    [
        (4, 1.0, 0.75),
        (12, 1.0, 0.5),
        (96, 1.0, 0.2),  # no more than five times faster
        (96, 20.0, 0.4),  # 20 us of the 50 that fill the device
        (12, 20.0, 0.5),
        (96, 45.0, 0.8),
        (2, 45.0, 6 / 7),
        (0, 45.0, 1.0),  # one kernel for all
    ],
)
def test_small_kernels_of_many_groups_run_side_by_side(groups: int, group_us: float, share: float) -> None:
    found = share_side_by_side(np.array([[max(groups, 1) * group_us / 1e3]]), np.array([float(groups)]), most=5.0)
    assert found == pytest.approx(share)
    # Where nothing is known of it they run one after the other.
    assert share_side_by_side(np.array([0.1]), np.array([float(groups)]), most=0.0) == pytest.approx(1.0)


def test_kernels_that_take_longer_never_make_the_call_shorter() -> None:
    one_by_one_ms = np.linspace(0.01, 20.0, 500)
    for groups in (2.0, 16.0, 64.0, 500.0):
        together_ms = one_by_one_ms * share_side_by_side(one_by_one_ms, np.full(500, groups), most=5.0)
        assert (np.diff(together_ms) > 0.0).all()


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
    assert (captured / eager).tolist() == pytest.approx([1.0, 12 / 20, 1.0])
    # Where none was measured nothing is said.
    nothing = replace(rates, side_by_side=0.0)
    assert np.array_equal(busy("cuda-graph", nothing), busy("eager", nothing))


@pytest.mark.parametrize(
    ("read", "groups", "layout", "launch_us"),
    [
        (512, 8, Layout.NCHW, 4.5 * 4 * 7),
        (512, 8, Layout.NHWC, 4.5 * 2 * 7),
        (256, 256, Layout.NHWC, 4.5 * 255),
        (256, 256, Layout.NCHW, 0.0),
        (512, 1, Layout.NCHW, 0.0),
    ],
)
def test_the_host_launches_every_group(read: int, groups: int, layout: Layout, launch_us: float, builder: Any) -> None:
    graph = _graph(builder, read=read, written=512, groups=groups)
    plan = _plan(graph, Precision.AMP)
    assert group_launch_us(plan, layout).tolist() == [0.0, pytest.approx(launch_us), 0.0]
    conditions = Conditions(precision=Precision.AMP, layout=layout)
    # It runs from its first group on, and what comes next waits for the last.
    added_ms = launched_ms(plan, conditions, Rates()) - np.cumsum(plan.dispatch_us) / 1e3
    assert added_ms == pytest.approx([0.0, 0.0, launch_us / 1e3])
    older = KernelPlan.from_workload(plan.work, software=Software.parse("torch 2.1"))
    assert not group_launch_us(older, layout).any()
