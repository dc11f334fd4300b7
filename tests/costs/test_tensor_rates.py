"""Rates of tensor cores by the format of the arithmetic."""

from __future__ import annotations

import pytest

from dippm.costs.precision import Arithmetic
from dippm.costs.tensor_rates import (
    OF_FP16,
    fp16_operations,
    of_every_format,
    tensor_format,
    tensor_tflops,
)
from dippm.devices import DeviceSpec, find_device, load_catalog


@pytest.mark.parametrize(
    ("name", "arithmetic", "computed", "tflops"),
    [
        ("H100 SXM", Arithmetic.FP8, Arithmetic.FP8, 1979.0),
        ("L4", Arithmetic.FP8, Arithmetic.FP8, 242.5),
        ("RTX 4090", Arithmetic.FP8, Arithmetic.FP8, 330.3),
        ("A100", Arithmetic.FP8, Arithmetic.BF16, 312.0),
        ("A100", Arithmetic.TF32, Arithmetic.TF32, 156.0),
        ("A100", Arithmetic.FP32, Arithmetic.FP32, 0.0),
        # Neither FP8 nor BF16.
        ("T4", Arithmetic.FP8, Arithmetic.BF16, 0.0),
        ("T4", Arithmetic.FP16, Arithmetic.FP16, 65.0),
        ("P100-PCIE-16GB", Arithmetic.FP16, Arithmetic.FP16, 0.0),
    ],
)
def test_format_and_rate(name: str, arithmetic: Arithmetic, computed: Arithmetic, tflops: float) -> None:
    device = find_device(name)
    assert tensor_format(device, arithmetic) is computed
    assert tensor_tflops(device, arithmetic) == pytest.approx(tflops, rel=0.01)


@pytest.mark.parametrize(
    ("name", "arithmetic", "operations"),
    [
        ("A100", Arithmetic.TF32, 2.0),
        ("A100", Arithmetic.INT8, 0.5),
        # Made BF16 first.
        ("A100", Arithmetic.FP8, 1.0),
        ("H100 SXM", Arithmetic.FP8, 0.5),
        # 150 TOPS beside 2,250 TFLOP/s.
        ("B300", Arithmetic.INT8, 1.0),
        ("B300", Arithmetic.FP8, 0.5),
        # Four times FP16 that accumulates in FP32, twice FP16 that accumulates alike.
        ("RTX 4090", Arithmetic.INT8, 0.5),
        # No rate of BF16 at all.
        ("T4", Arithmetic.BF16, 1.0),
    ],
)
def test_an_operation_counts_as_so_many_of_fp16(name: str, arithmetic: Arithmetic, operations: float) -> None:
    assert fp16_operations(find_device(name), arithmetic) == pytest.approx(operations)


def test_one_card_alone_does_a_format_out_of_proportion() -> None:
    """Figures of data sheets are rounded; what they are rounded from is the proportion."""
    unusual = {
        (device.name, arithmetic)
        for device in load_catalog()
        for arithmetic, rate in OF_FP16.items()
        if tensor_format(device, arithmetic) is arithmetic and fp16_operations(device, arithmetic) != 1.0 / rate
    }
    assert unusual == {("B300 SXM6 AC", Arithmetic.INT8)}


def test_what_holds_of_every_format_is_worked_out_once() -> None:
    asked = []

    def rate(device: DeviceSpec, arithmetic: Arithmetic, factor: float, *, more: float = 0.0) -> float:
        asked.append((device.name, arithmetic))
        return factor * tensor_tflops(device, arithmetic) + more

    table, device = of_every_format(rate), find_device("A100")
    expected = [2.0 * tensor_tflops(device, arithmetic) + 1.0 for arithmetic in Arithmetic]
    assert table(device, 2.0, more=1.0).tolist() == table(device, 2.0, more=1.0).tolist() == expected
    assert len(asked) == len(Arithmetic)
    assert table(device, 2.0).tolist() != expected
    with pytest.raises(ValueError, match="read-only"):
        table(device, 2.0)[0] = 1.0
