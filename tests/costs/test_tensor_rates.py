"""Rates of tensor cores by the format of the arithmetic."""

from __future__ import annotations

import pytest

from dippm.costs.precision import Arithmetic
from dippm.costs.tensor_rates import tensor_format, tensor_tflops
from dippm.devices import find_device


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
