"""Which resizes go through the planes of an image in turn."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.costs.conditions import Layout
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.precision import Precision
from dippm.costs.resizing import count_planes, resizes_in_turn
from dippm.costs.workload import Workload
from dippm.graph import OpKind

POINTWISE = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}


def _plan(builder: Any) -> KernelPlan:
    return KernelPlan.from_workload(Workload.from_graph(builder.graph(), Precision.FP32))


@pytest.mark.parametrize(
    ("mode", "channels", "nchw", "nhwc"),
    [
        ("linear", 16, True, False),
        ("bilinear", 64, True, False),
        ("linear", 15, True, True),  # planes are made of so few channels
        ("cubic", 64, True, True),
        ("bicubic", 64, True, True),
        ("nearest", 64, False, False),
        ("nearest-exact", 64, False, False),
    ],
)
def test_by_mode_and_layout(mode: str, channels: int, nchw: bool, nhwc: bool, builder: Any) -> None:
    n, weight = builder.N, builder.weight(channels, 3, 1, 1)
    x = builder.node(OpKind.CONV, [builder.input(n, 3, 8, 8), weight], n, channels, 8, 8, **POINTWISE)
    builder.node(OpKind.RESIZE, [x], n, channels, 16, 16, mode=mode)
    plan = _plan(builder)
    assert [resizes_in_turn(plan, layout).tolist() == [1] for layout in (Layout.NCHW, Layout.NHWC)] == [nchw, nhwc]


def test_transposed_tokens_have_their_channels_side_by_side(builder: Any) -> None:
    n = builder.N
    tokens = builder.node(OpKind.RELU, [builder.input(n, 49, 512)], n, 49, 512)
    turned = builder.node(OpKind.VIEW, [tokens], n, 512, 49, alias_of=tokens, function="transpose")
    image = builder.node(OpKind.VIEW, [turned], n, 512, 7, 7, alias_of=tokens, function="view")
    builder.node(OpKind.RESIZE, [image], n, 512, 14, 14, mode="linear")
    assert resizes_in_turn(_plan(builder), Layout.NCHW).tolist() == []


@pytest.mark.parametrize(("sides", "pixels"), [((32,), 32), ((8, 16), 128), ((4, 8, 16), 512)])
def test_planes_and_their_pixels(sides: tuple[int, ...], pixels: int, builder: Any) -> None:
    n = builder.N
    builder.node(OpKind.RESIZE, [builder.input(n, 24, *(side // 2 for side in sides))], n, 24, *sides, mode="linear")
    plan = _plan(builder)
    node = resizes_in_turn(plan, Layout.NCHW)
    planes, of_plane = count_planes(plan.work.sizes, node, plan.work.at([1, 4]))
    assert planes.tolist() == [[24], [96]]
    assert of_plane.tolist() == [[pixels], [pixels]]
