"""What data sheets allow, by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dippm.costs.conditions import Conditions
from dippm.costs.software import DEFAULT_SOFTWARE
from dippm.devices import find_device
from dippm.graph import DType, Graph, OpKind
from dippm.predictors.calibration import Calibration
from dippm.predictors.least_times import least_ms, likely_least_ms, most_small_ms, one_by_one_ms, small_kernels_ms
from dippm.predictors.prepared_graph import CompiledGraphs, PreparedGraphs

FloatArray = npt.NDArray[np.float64]

_RATES = Calibration.read().rates


def _prepared(graph: Graph, precision: str, batch: int) -> PreparedGraphs:
    conditions = Conditions.parse(precision=precision)
    compiled = CompiledGraphs.of([graph], conditions, DEFAULT_SOFTWARE)
    return PreparedGraphs.of(compiled, batches=[1, batch], conditions=conditions)


@pytest.mark.parametrize(("precision", "element_bytes"), [("fp32", 4), ("fp16", 2)])
@pytest.mark.parametrize("device", ["A100", "T4", "1g.5gb@A100-SXM4-40GB"])
def test_what_passes_the_cache_comes_at_the_bandwidth(
    builder: Any, device: str, precision: str, element_bytes: int
) -> None:
    image = (builder.N, 256, 14, 14)
    builder.node(OpKind.SIGMOID, [builder.input(*image)], *image)
    builder.node(OpKind.GLOBAL_POOL, [builder.input(*image)], builder.N, 256, 1, 1, output_size=(1, 1))
    card, read = find_device(device), element_bytes * 4096 * 256 * 14 * 14
    few, many = least_ms(_prepared(builder.graph(), precision, 4096), card)
    assert few.tolist() == [0.0, 0.0]
    moved = 2 * read, read + element_bytes * 4096 * 256
    expected = [(each - card.l2_mb * 2**20) / (card.bandwidth_gb_s * 1e9) * 1e3 for each in moved]
    assert many.tolist() == pytest.approx(expected)


def _product_tflops(builder: Any, precision: str, tell: Callable[[PreparedGraphs], FloatArray]) -> float:
    """What is said of 65,536 rows by a matrix of 4,096 x 4,096, as a rate, TFLOP/s."""
    x = builder.input(builder.N, 4096)
    builder.node(OpKind.LINEAR, [x, builder.weight(4096, 4096)], builder.N, 4096)
    _, (many,) = tell(_prepared(builder.graph(), precision, 2**16))
    return float(2.0 * 2**16 * 4096**2 / (1e9 * many)) if many else math.inf


@pytest.mark.parametrize(
    ("device", "precision", "peak"),
    [
        ("A100", "fp16", "fp16_tensor"),
        ("A100", "tf32", "tf32_tensor"),
        ("A100", "fp32", "fp32"),
        ("P100", "fp16", "fp16"),
        ("P100", "bf16", "fp32"),
    ],
)
def test_products_take_what_the_fastest_unit_takes_a_tenth_above_its_boost(
    builder: Any, device: str, precision: str, peak: str
) -> None:
    card = find_device(device)
    rate = _product_tflops(builder, precision, lambda prepared: least_ms(prepared, card))
    assert rate == pytest.approx(1.1 * card.peak_tflops[peak], rel=1e-6)


@pytest.mark.parametrize(
    ("device", "precision", "tflops"),
    [
        ("RTX 4090", "fp16", 165.2),
        # What shared memory feeds: its part of the time is f / (1 + f), f = tensor_feed * 2048 / 128 / 8, counted in
        # that of a card at half the rate.
        ("A100", "fp16", 312.0 * (1.0 - _RATES.tensor_feed / (1.0 + 2.0 * _RATES.tensor_feed))),
        # What its power allows, 72 W at 1.65 W for each TFLOP/s.
        ("L4", "fp16", 72.0 / 1.65),
        ("A100", "fp32", math.inf),
        ("P100", "fp16", math.inf),
    ],
)
def test_products_on_tensor_cores_are_likely_to_take_what_feeds_these(
    builder: Any, device: str, precision: str, tflops: float
) -> None:
    rate = _product_tflops(builder, precision, lambda prepared: likely_least_ms(prepared, find_device(device), _RATES))
    assert rate == pytest.approx(1.1 * tflops, rel=2e-3)


def test_recurrent_layers_and_convolutions_of_three_dimensions_take_their_arithmetic(builder: Any) -> None:
    n, device = builder.N, find_device("P100")
    window = {"kernel": (3, 3, 3), "stride": (1, 1, 1), "padding": (1, 1, 1), "dilation": (1, 1, 1), "groups": 1}
    image = builder.input(n, 64, 16, 56, 56)
    builder.node(OpKind.CONV, [image, builder.weight(64, 64, 3, 3, 3)], n, 64, 16, 56, 56, **window)
    weights = [builder.weight(4 * 512, 512), builder.weight(4 * 512, 512)]
    sequence = builder.input(n, 100, 512)
    builder.node(OpKind.LSTM, [sequence, *weights], n, 100, 512, hidden_size=512, batch_first=True)
    _, (deep, recurrent) = least_ms(_prepared(builder.graph(), "fp32", 64), device)
    assert deep == pytest.approx(2.0 * 64 * 16 * 56**2 * 64 * 64 * 27 / (1.1e9 * 9.3), rel=2e-3)
    assert recurrent == pytest.approx(2.0 * 64 * 100 * 4 * 512 * 1024 / (1.1e9 * 9.3), rel=2e-3)


def test_group_norms_read_their_input_twice(builder: Any) -> None:
    image = (builder.N, 256, 64, 64)
    builder.node(OpKind.GROUP_NORM, [builder.input(*image)], *image, groups=32, axes_size=8 * 64 * 64)
    device = find_device("A100")
    few, many = least_ms(_prepared(builder.graph(), "fp32", 64), device)
    held, cache = 4 * 64 * 256 * 64 * 64, device.l2_mb * 2**20
    assert few.tolist() == [0.0]
    moved = (2 * held - cache) + (held - cache)
    assert many.tolist() == pytest.approx([moved / (device.bandwidth_gb_s * 1e6)], rel=1e-4)


def test_formats_that_sheets_do_not_tell_have_no_end(builder: Any) -> None:
    x = builder.input(builder.N, 1024, dtype=DType.FLOAT64)
    builder.node(
        OpKind.MATMUL, [x, builder.weight(1024, 1024, dtype=DType.FLOAT64)], builder.N, 1024, dtype=DType.FLOAT64
    )
    few, _ = least_ms(_prepared(builder.graph(), "fp32", 2), find_device("A100"))
    assert few.tolist() == [0.0]


def test_decompositions_take_their_arithmetic_at_the_peak(builder: Any) -> None:
    x = builder.input(builder.N, 256, 256)
    builder.node(OpKind.UNKNOWN, [x], builder.N, 256, 256, flops_per_element=5000.0)
    card = find_device("A100")
    _, (many,) = least_ms(_prepared(builder.graph(), "fp32", 64), card)
    assert many == pytest.approx(5000.0 * 64 * 256**2 / (1.1e9 * card.peak_tflops["fp32"]), rel=1e-6)


def test_what_goes_element_by_element_takes_cycles_of_multiprocessors(builder: Any) -> None:
    n, image = builder.N, (8, 7, 7)
    x = builder.input(n, *image)
    builder.node(OpKind.CONCAT, [x, builder.input(n, 3, 7, 7)], n, 11, 7, 7, axis=1)
    builder.node(OpKind.CONCAT, [builder.input(n, 64, 64), builder.input(n, 64, 64)], n, 128, 64, axis=1)  # in vectors
    window = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    builder.node(OpKind.MAX_POOL, [x], n, *image, **window)
    builder.node(OpKind.POOL_GRAD, [x], n, *image, function="max_pool", **window)
    builder.node(OpKind.BATCH_NORM, [x, *(builder.weight(8) for _ in range(4))], n, *image)
    builder.node(OpKind.SIGMOID, [x], n, *image)
    card = find_device("A100")
    cycles = {"join_cycles": 1.5, "join_block_cycles": 0.0, "pool_element_cycles": 2.0, "pool_tap_cycles": 0.25}
    traced = {"9.0": {**cycles, "element_cycles": 0.5}}
    prepared = _prepared(builder.graph(), "fp16", 2**16)
    least = least_ms(prepared, card)
    _, many = one_by_one_ms(prepared, card, replace(_RATES, measured=traced), least=least)
    elements_per_ms = 2**16 * 49 / (card.sm_count * card.boost_clock_mhz * 1e3)
    pool_ms, norm_ms = (2.0 + 9 * 0.25) * 8 * elements_per_ms, least[1, 4] + 0.5 * 8 * elements_per_ms
    assert many.tolist() == pytest.approx([1.5 * 11 * elements_per_ms, 0.0, pool_ms, 0.0, norm_ms, 0.0])
    assert least[1, 4] > 0.0


def test_small_kernels_take_their_start_and_end(builder: Any) -> None:
    x = builder.input(builder.N, 8)
    y = builder.node(OpKind.RELU, [x], builder.N, 8)
    builder.node(OpKind.VIEW, [y], builder.N, 2, 4, alias_of=y)
    builder.node(OpKind.REDUCE, [y], builder.N, 1)
    least, _ = 1e3 * small_kernels_ms(_prepared(builder.graph(), "amp", 64))
    assert least.tolist() == pytest.approx([1.69473, 0.0, 3.05118])


def test_small_kernels_take_the_cycles_of_a_better_card_and_large_ones_what_they_take(builder: Any) -> None:
    n, a100, h100 = builder.N, find_device("A100"), find_device("H100")
    x = builder.node(OpKind.RELU, [builder.input(n, 1024)], n, 1024)
    builder.node(OpKind.LINEAR, [x, builder.weight(1024, 1024)], n, 1024)
    prepared = _prepared(builder.graph(), "fp16", 4096)
    clocks = h100.boost_clock_mhz / a100.boost_clock_mhz
    known = np.array([[1e-3, 15e-3], [1e-3, 150e-3]])
    (relu, linear), (_, large) = most_small_ms(prepared, known, h100, a100)
    moved_ms = 2 * 2 * 1024 / (a100.bandwidth_gb_s * 1e6)
    assert relu == pytest.approx(clocks * 1e-3 * (1 + 1 / 225) + 3 * moved_ms)
    weight_ms = 2 * (1024 * 1024 + 2 * 1024) / (a100.bandwidth_gb_s * 1e6)
    assert linear == pytest.approx(clocks * 30e-3 + 3 * weight_ms, rel=0.01)
    assert large > 100 * known[1, 1]
