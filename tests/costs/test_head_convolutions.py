"""Convolutions over nearly a whole image that run outside of tensor cores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions, Layout
from dippm.costs.device_time import busy_ms
from dippm.costs.head_convolutions import plain_head_terms
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.precision import Precision
from dippm.costs.rates import Rates
from dippm.costs.workload import Workload
from dippm.devices import find_device
from dippm.graph import Graph, OpKind

_SM_COUNT = 132


def _head(
    builder: Any, side: int, *, channels: int = 256, outputs: int = 1024, width: int = 7, padding: int = 0
) -> Graph:
    n, places = builder.N, side + 2 * padding - width + 1
    settings = {"stride": (1, 1), "padding": (padding, padding), "dilation": (1, 1), "groups": 1}
    x, weight = builder.input(n, channels, side, side), builder.weight(outputs, channels, width, width)
    builder.node(OpKind.CONV, [x, weight], n, outputs, places, places, kernel=(width, width), **settings)
    return builder.graph()  # type: ignore[no-any-return]


def _terms(graph: Graph, batches: list[int], precision: str = "amp", layout: Layout = Layout.NCHW) -> list[float]:
    plan = KernelPlan.from_workload(Workload.from_graph(graph, Precision(precision)))
    node, terms = plain_head_terms(plan, plan.work.at(batches), layout=layout, sm_count=_SM_COUNT)
    assert node.tolist() == ([0] if len(node) else [])
    return terms[:, 0].tolist() if len(node) else [0.0] * len(batches)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("side", "layout", "batches", "is_plain"), [
    (7, Layout.NCHW, [1, 15, 16, 24], [False, False, True, True]),
    (7, Layout.NHWC, [1, 15, 16, 24], [False, False, True, True]),
    (8, Layout.NCHW, [1, 2, 64], [True, True, True]),
    (8, Layout.NHWC, [1, 2, 64], [False, False, False]),
    (10, Layout.NCHW, [2, 7, 8, 12], [False, False, True, True]),
])  # fmt: skip
def test_what_decides_is_how_many_pixels_the_result_has(
    builder: Any, side: int, layout: Layout, batches: list[int], is_plain: list[bool]
) -> None:
    terms = _terms(_head(builder, side), batches, layout=layout)
    assert terms == [256 * 49.0 if each else 0.0 for each in is_plain]


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_formats_of_32_bits_keep_tensor_cores(builder: Any, precision: str) -> None:
    assert _terms(_head(builder, 8), [16], precision) == [0.0]


@pytest.mark.parametrize("changes", [{"channels": 64}, {"outputs": 256}, {"width": 5}, {"padding": 3}])
def test_other_convolutions_keep_tensor_cores(builder: Any, changes: dict[str, int]) -> None:
    assert _terms(_head(builder, 8, **changes), [16]) == [0.0]


def test_convolutions_of_volumes_and_of_oblong_images_keep_tensor_cores(builder: Any) -> None:
    n, settings = builder.N, {"padding": (0, 0, 0), "stride": (1, 1, 1), "dilation": (1, 1, 1), "groups": 1}
    x, weight = builder.input(n, 256, 8, 7, 7), builder.weight(1024, 256, 1, 7, 7)
    x = builder.node(OpKind.CONV, [x, weight], n, 1024, 8, 1, 1, kernel=(1, 7, 7), **settings)
    settings = {"padding": (0, 0), "stride": (1, 1), "dilation": (1, 1), "groups": 1}
    x, weight = builder.input(n, 256, 7, 8), builder.weight(1024, 256, 7, 7)
    builder.node(OpKind.CONV, [x, weight], n, 1024, 1, 2, kernel=(7, 7), **settings)
    plan = KernelPlan.from_workload(Workload.from_graph(builder.graph(), Precision.AMP))
    _, terms = plain_head_terms(plan, plan.work.at([64]), layout=Layout.NCHW, sm_count=_SM_COUNT)
    assert not terms.any()


def test_beyond_what_was_traced_more_pixels_take_no_more_terms(builder: Any, new_builder: Any) -> None:
    traced, more = _terms(_head(builder, 12), [128, 1024])
    assert traced == more > 256 * 49.0
    assert _terms(_head(new_builder(), 22), [64]) == [256 * 49.0]


def test_blocks_beyond_those_that_run_at_once_wait(builder: Any) -> None:
    few, many = _terms(_head(builder, 12, outputs=2048), [8, 128])
    blocks = np.ceil(128 * 36 / 64) * 2048 / 128
    assert few == 256 * 49.0
    assert many == pytest.approx(few * blocks / (1.8 * _SM_COUNT))


def test_a_head_takes_its_terms_where_an_architecture_has_cycles_for_them(builder: Any) -> None:
    graph, device, conditions = _head(builder, 7), find_device("H200"), Conditions.parse(precision="fp16")
    plan = KernelPlan.from_workload(Workload.from_graph(graph, Precision.FP16))
    kernels, rates = load_kernel_model(), Rates(gap_us=2.0)

    def time_ms(rates: Rates) -> list[float]:
        at = plan.work.at([8, 16])
        (busy,) = busy_ms(plan, at, devices=[device], conditions=conditions, rates=rates, kernels=kernels)
        return busy[:, 0].tolist()  # type: ignore[no-any-return]

    plain, with_heads = time_ms(rates), time_ms(replace(rates, head_cycles=240.0))
    assert with_heads[0] == plain[0]
    assert with_heads[1] == pytest.approx(0.002 + 240.0 * 256 * 49 / (device.boost_clock_mhz * 1e3), rel=0.1)
    assert with_heads[1] > 4.0 * plain[1]
