"""Convolutions that no table covers, brought to families that one does (`conv2d_busy_ms`), fp32 without TF32.

The tables hold 3x3 with stride 1; the rest is reached through the matrix product that it amounts to:
``m = batch x output pixels``, ``n = output channels``, ``k = input channels x kernel size``.

====================================  =================================================================================
3x3, stride 1, dilation 1, ungrouped  the conv model itself, at the output's size (Winograd and FFT included); not
                                      where it is one slice of a 3x3x3, which has no such algorithms
other ungrouped kernels               the linear model; a stride only picks which pixels take part; no Winograd
grouped                               the bmm model, one product per group
====================================  =================================================================================

The matrix products are those of implicit GEMM: of the measured 3x3 convolutions that ran as such the median rate is
0.85 times that of the linear model's product of the same size on A100, 1.10 on V100, 1.13 on P100, 1.37 on T4 and 1.48
on P4 (the last two throttle more in the linear sweep). Convolutions with thin groups do not come here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from dippm.costs.kernels.model import KernelModel
from dippm.costs.kernels.problems import ConvProblem, Family, FloatArray, GemmProblem
from dippm.devices.spec import DeviceSpec

__all__ = [
    "ConvShape",
    "conv2d_busy_ms",
]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ConvShape:
    """Any two-dimensional convolution; one-dimensional ones have ``kernel_height`` and heights of 1.

    Args:
        batch: Samples.
        in_channels: Input channels, a multiple of ``groups``.
        out_channels: Output channels, a multiple of ``groups``.
        kernel_height: Kernel height.
        kernel_width: Kernel width.
        kernel_depth: Kernel depth, by which the input channels of a three-dimensional one are multiplied; else 1.
        stride: Stride (the larger, where they differ).
        dilation: Dilation (the larger, where they differ).
        groups: Groups.
        in_height: Input height, without padding.
        in_width: Input width, without padding.
        out_height: Output height.
        out_width: Output width.
    """

    batch: FloatArray
    in_channels: FloatArray
    out_channels: FloatArray
    kernel_height: FloatArray
    kernel_width: FloatArray
    kernel_depth: FloatArray
    stride: FloatArray
    dilation: FloatArray
    groups: FloatArray
    in_height: FloatArray
    in_width: FloatArray
    out_height: FloatArray
    out_width: FloatArray

    def __len__(self) -> int:
        """Number of convolutions."""
        return len(self.batch)

    @property
    def bytes(self) -> FloatArray:
        """Bytes of input, weights and output, once each, fp32."""
        inputs = self.batch * self.in_channels / self.kernel_depth * self.in_height * self.in_width
        outputs = self.batch * self.out_channels * self.out_height * self.out_width
        weights = self.out_channels * self.in_channels / self.groups * self.kernel_height * self.kernel_width
        return 4.0 * (inputs + outputs + weights)

    @property
    def gemm(self) -> GemmProblem:
        """The matrix product that each convolution amounts to, one per group."""
        return GemmProblem(
            m=self.batch * self.out_height * self.out_width,
            n=self.out_channels / self.groups,
            k=self.in_channels / self.groups * self.kernel_height * self.kernel_width,
            b=self.groups,
        )


def conv2d_busy_ms(model: KernelModel, shape: ConvShape, devices: Sequence[DeviceSpec]) -> FloatArray:
    """Time for which any convolution keeps each device busy, ms, fp32 without TF32.

    Args:
        model: The learned kernel times.
        shape: The convolutions.
        devices: The devices.

    Returns:
        One time per device and convolution, ms.

    Shapes:
        Result: [D, n].
    """
    busy_ms = np.empty((len(devices), len(shape)), dtype=np.float64)
    ungrouped = shape.groups == 1.0
    winograd = ungrouped & _is_3x3(shape)
    if winograd.any():
        busy_ms[:, winograd] = model.busy_ms(Family.CONV, _as_3x3(_pick(shape, winograd)), devices)
    for mask, family in ((ungrouped & ~winograd, Family.LINEAR), (~ungrouped, Family.BMM)):
        if mask.any():
            busy_ms[:, mask] = model.busy_ms(family, _pick(shape, mask).gemm, devices)
    return busy_ms


def _is_3x3(shape: ConvShape) -> npt.NDArray[np.bool_]:
    """Whether the conv model covers a convolution, groups aside."""
    is_3x3 = (shape.kernel_height == 3.0) & (shape.kernel_width == 3.0) & (shape.kernel_depth == 1.0)
    return np.asarray(is_3x3 & (shape.stride == 1.0) & (shape.dilation == 1.0))


def _pick(shape: ConvShape, mask: npt.NDArray[np.bool_]) -> ConvShape:
    return ConvShape(**{each.name: getattr(shape, each.name)[mask] for each in fields(shape)})


def _as_3x3(shape: ConvShape) -> ConvProblem:
    return ConvProblem(
        batch=shape.batch,
        in_channels=shape.in_channels,
        out_channels=shape.out_channels,
        height=shape.out_height,
        width=shape.out_width,
    )
