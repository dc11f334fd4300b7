"""What a data sheet says of tensor cores, by the format that an operator computes in."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Concatenate, ParamSpec, cast

import numpy as np
import numpy.typing as npt

from dippm.costs.precision import Arithmetic
from dippm.devices import DeviceSpec

__all__ = ["OF_FP16", "fp16_operations", "of_every_format", "tensor_format", "tensor_tflops"]

FloatArray = npt.NDArray[np.float64]

_Asked = ParamSpec("_Asked")

#: Rate of each format on tensor cores over that of FP16, accumulated alike.
OF_FP16 = {
    Arithmetic.TF32: 0.5, Arithmetic.FP16: 1.0, Arithmetic.BF16: 1.0, Arithmetic.INT8: 2.0, Arithmetic.FP8: 2.0,
}  # fmt: skip

_PEAK = {
    Arithmetic.TF32: "tf32_tensor",
    Arithmetic.FP16: "fp16_tensor",
    Arithmetic.BF16: "bf16_tensor",
    Arithmetic.INT8: "int8_tensor",
    Arithmetic.FP8: "fp8_tensor",
}
# Data sheets round: a rate within this of the format's own is that.
_ROUNDING = 0.05
# What numbers are made first where no unit multiplies them as they are.
_INSTEAD = {Arithmetic.FP8: Arithmetic.BF16}


def tensor_format(device: DeviceSpec, arithmetic: Arithmetic) -> Arithmetic:
    """The format that a device computes in where an operator asks for this one: BF16 where it has no units for FP8."""
    return arithmetic if _PEAK.get(arithmetic, "") in device.peak_tflops else _INSTEAD.get(arithmetic, arithmetic)


def tensor_tflops(device: DeviceSpec, arithmetic: Arithmetic) -> float:
    """Peak of the tensor cores that compute in a format, or in the one taken instead, TFLOP/s; 0 without such."""
    return device.peak_tflops.get(_PEAK.get(tensor_format(device, arithmetic), ""), 0.0)


def fp16_operations(device: DeviceSpec, arithmetic: Arithmetic) -> float:
    """What an operation of a format takes of the tensor cores' power, as so many operations of FP16.

    Tensor cores are taken to draw the same in any format that they are built for, so that it follows from the usual
    rate beside FP16's. Where a device does a format more slowly than that, with what is left of its units (INT8 on a
    B300), one is taken for an operation of FP16 at least: no measurement tells. Where it seems to do it faster, as
    GeForce cards INT8, it is FP16 that is held back, which accumulates in FP32 there.

    Args:
        device: The device.
        arithmetic: A format that tensor cores compute in, or in which they compute something else instead.
    """
    computed = tensor_format(device, arithmetic)
    usual, fp16 = OF_FP16[computed], device.peak_tflops.get(_PEAK[Arithmetic.FP16])
    peak = tensor_tflops(device, arithmetic)
    is_slow = fp16 is not None and 0.0 < peak < (1.0 - _ROUNDING) * usual * fp16
    return max(1.0, 1.0 / usual) if is_slow else 1.0 / usual


def of_every_format(
    function: Callable[Concatenate[DeviceSpec, Arithmetic, _Asked], float],
) -> Callable[Concatenate[DeviceSpec, _Asked], FloatArray]:
    """What a function says of all formats on a device, [len(Arithmetic)], worked out once and not to be written to.

    Args:
        function: Depends on its arguments alone, which can be hashed.
    """

    @lru_cache(maxsize=256)
    def table(device: DeviceSpec, *args: _Asked.args, **kwargs: _Asked.kwargs) -> FloatArray:
        result = np.array([function(device, arithmetic, *args, **kwargs) for arithmetic in Arithmetic])
        result.flags.writeable = False
        return result

    return cast("Callable[Concatenate[DeviceSpec, _Asked], FloatArray]", table)
