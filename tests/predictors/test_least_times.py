"""What data sheets allow, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.costs.conditions import Conditions
from dippm.costs.software import DEFAULT_SOFTWARE
from dippm.devices import find_device
from dippm.graph import DType, Graph, OpKind
from dippm.predictors.least_times import least_ms
from dippm.predictors.prepared_graph import CompiledGraphs, PreparedGraphs


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
    x = builder.input(builder.N, 4096)
    builder.node(OpKind.LINEAR, [x, builder.weight(4096, 4096)], builder.N, 4096)
    card = find_device(device)
    _, (many,) = least_ms(_prepared(builder.graph(), precision, 2**16), card)
    assert many == pytest.approx(2.0 * 2**16 * 4096**2 / (1.1e9 * card.peak_tflops[peak]), rel=1e-6)


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
