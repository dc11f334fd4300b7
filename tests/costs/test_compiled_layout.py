"""Which models torch.compile turns to channels last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.compiled_layout import runs_channels_last
from dippm.costs.conditions import Layout
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.precision import Precision
from dippm.costs.sizes import GraphSizes
from dippm.costs.software import Software
from dippm.costs.workload import Workload
from dippm.graph import Graph, OpKind


def conv(builder: Any, x: int, *, channels: int, out: int, groups: int = 1, kernel: int = 3) -> int:
    size = (kernel, kernel)
    return int(
        builder.node(
            OpKind.CONV, [x, builder.weight(out, channels // groups, *size)], builder.N, out, 8, 8, groups=groups,
            kernel=size, stride=(1, 1), padding=(kernel // 2, kernel // 2), dilation=(1, 1),
        )
    )  # fmt: skip


def is_turned(*graphs: Graph) -> list[bool]:
    result: list[bool] = runs_channels_last(
        Workload.from_sizes(GraphSizes.from_graphs(graphs), Precision.FP32)
    ).tolist()
    return result


@pytest.mark.parametrize("sides", [1, 2, 3])
def test_only_convolutions_of_two_dimensions_are_turned(builder: Any, sides: int) -> None:
    image, size = (builder.N, 256, *[8] * sides), (3,) * sides
    ones = {"stride": (1,) * sides, "padding": (1,) * sides, "dilation": (1,) * sides, "groups": 1}
    x = builder.input(*image)
    builder.node(OpKind.CONV, [x, builder.weight(256, 256, *size)], *image, kernel=size, **ones)
    assert is_turned(builder.graph()) == [sides == 2]


@pytest.mark.parametrize(
    ("channels", "out", "groups", "expected"),
    [
        (256, 256, 1, True),
        (32, 32, 1, True),
        (256, 256, 256, True),  # Depthwise counts as one with few channels.
        (256, 256, 32, False),
        (256, 64, 1, True),
    ],
)
def test_grouped_convolutions_alone_keep_it_from_turning(
    builder: Any, channels: int, out: int, groups: int, expected: bool
) -> None:
    conv(builder, builder.input(builder.N, channels, 8, 8), channels=channels, out=out, groups=groups)
    assert is_turned(builder.graph()) == [expected]


def test_flops_decide_where_there_are_both(builder: Any) -> None:
    """358 thousandths that a grouped one loses against 177 that a plain one gains."""
    x = conv(builder, builder.input(builder.N, 128, 8, 8), channels=128, out=128, groups=2)
    x = conv(builder, x, channels=128, out=128)
    once = builder.graph()
    conv(builder, conv(builder, x, channels=128, out=128), channels=128, out=128, groups=4)
    assert is_turned(once, builder.graph()) == [False, True]


def test_few_convolutions_among_many_operators_are_left(builder: Any) -> None:
    x = conv(builder, builder.input(builder.N, 128, 8, 8), channels=128, out=128)
    for _ in range(298):
        x = builder.node(OpKind.RELU, [x], builder.N, 128, 8, 8)
    assert is_turned(builder.graph()) == [True]
    builder.node(OpKind.RELU, [x], builder.N, 128, 8, 8)
    assert is_turned(builder.graph()) == [False]


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({"channels": 128, "out": 128}, True),
        ({"channels": 128, "out": 128, "groups": 128}, True),
        ({"channels": 128, "out": 128, "groups": 2}, False),
        ({"channels": 128, "out": 64}, False),
        ({"channels": 128, "out": 64, "kernel": 1}, True),
    ],
    ids=str,
)
def test_in_training_one_convolution_that_loses_keeps_all_as_they_are(
    builder: Any, second: dict[str, int], expected: bool
) -> None:
    x = conv(builder, builder.input(builder.N, 128, 8, 8), channels=128, out=128)
    conv(builder, x, **second)
    # What the backward pass convolves does not count.
    conv(builder, builder.input(builder.N, 64, 8, 8), channels=64, out=64, groups=2)
    work = Workload.from_graph(builder.graph())
    assert runs_channels_last(work, np.array([False, False, True])).tolist() == [expected]


def test_in_training_convolutions_of_few_channels_are_left(builder: Any) -> None:
    x = conv(builder, builder.input(builder.N, 64, 8, 8), channels=64, out=64)
    builder.node(OpKind.RELU, [x], builder.N, 64, 8, 8)
    work = Workload.from_graph(builder.graph())
    assert runs_channels_last(work, np.array([False, True])).tolist() == [False]
    assert runs_channels_last(work).tolist() == [True]


def test_a_release_without_the_rule_turns_nothing(builder: Any) -> None:
    conv(builder, builder.input(builder.N, 128, 8, 8), channels=128, out=128)
    work = Workload.from_graph(builder.graph()).fused()
    assert KernelPlan.from_workload(work).is_turned.tolist() == [True]
    plan = KernelPlan.from_workload(work, software=Software(torch=(2, 0)))
    assert (plan.is_turned.tolist(), plan.formats[Layout.NCHW].is_last.tolist()) == ([False], [False])


def test_a_model_without_convolutions_is_left(builder: Any) -> None:
    builder.node(OpKind.RELU, [builder.input(builder.N, 4)], builder.N, 4)
    assert is_turned(builder.graph()) == [False]


def test_the_kernels_of_a_compiled_model_follow(builder: Any) -> None:
    conv(builder, builder.input(builder.N, 128, 8, 8), channels=128, out=128)
    work = Workload.from_graph(builder.graph())
    eager, compiled = (KernelPlan.from_workload(each).formats[Layout.NCHW] for each in (work, work.fused()))
    assert (eager.is_last.tolist(), compiled.is_last.tolist()) == ([False], [True])
