"""Physics for convolutions that no table covers (`conv2d_busy_ms`), fp32 without TF32.

The tables hold 3x3 with stride 1; the rest is reached through the matrix product that it amounts to:
``m = batch x output pixels``, ``n = output channels``, ``k = input channels x kernel size``.

====================================  =================================================================================
3x3, stride 1, dilation 1, ungrouped  the conv model itself, at the output's size (Winograd and FFT included); not
                                      where it is one slice of a 3x3x3, which has no such algorithms
1x1, ungrouped                        the linear model; a stride only picks which pixels take part
other ungrouped kernels               the linear model, slowed by ``implicit_gemm_efficiency``; no Winograd
grouped                               the bmm model, one product per group, slowed likewise
depthwise (one channel per group)     traffic at a share of the memory bandwidth, arithmetic at a share of the peak
====================================  =================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from dippm.costs.kernels.model import KernelModel
from dippm.costs.kernels.problems import ConvProblem, Family, FloatArray, GemmProblem, Sizes, equal_columns
from dippm.devices.spec import DeviceSpec
from dippm.errors import UsageError

__all__ = [
    "ConvCoefficients",
    "ConvShape",
    "conv2d_busy_ms",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvCoefficients:
    """What the mapping of convolutions assumes.

    Args:
        implicit_gemm_efficiency: Rate of an implicit-GEMM convolution over that of the linear model's product of the
            same size. Of the measured 3x3 convolutions that ran as implicit GEMM the median is 0.85 on A100, 1.10 on
            V100, 1.13 on P100, 1.37 on T4 and 1.48 on P4 (the last two throttle more in the linear sweep).
        depthwise_bandwidth_efficiency: Share of the memory bandwidth that a depthwise kernel reaches, 0 to 1. Assumed.
        depthwise_compute_efficiency: Share of the fp32 peak that a depthwise kernel reaches, 0 to 1; bounds large
            kernels. Assumed.
    """

    implicit_gemm_efficiency: float = 1.0
    depthwise_bandwidth_efficiency: float = 0.5
    depthwise_compute_efficiency: float = 0.15


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

    @classmethod
    def of(
        cls,
        *,
        batch: Sizes,
        in_channels: Sizes,
        out_channels: Sizes,
        kernel_height: Sizes,
        kernel_width: Sizes,
        kernel_depth: Sizes = 1.0,
        in_height: Sizes,
        in_width: Sizes,
        out_height: Sizes,
        out_width: Sizes,
        stride: Sizes = 1.0,
        dilation: Sizes = 1.0,
        groups: Sizes = 1.0,
    ) -> ConvShape:
        """Build shapes from numbers, lists or arrays that broadcast to one length.

        Raises:
            UsageError: A size is out of range, or channels are no multiple of the groups.
        """
        given: dict[str, Sizes] = {
            "batch": batch,
            "in_channels": in_channels,
            "out_channels": out_channels,
            "kernel_height": kernel_height,
            "kernel_width": kernel_width,
            "kernel_depth": kernel_depth,
            "stride": stride,
            "dilation": dilation,
            "groups": groups,
            "in_height": in_height,
            "in_width": in_width,
            "out_height": out_height,
            "out_width": out_width,
        }
        columns = dict(zip(given, equal_columns("convolution", **given), strict=True))
        for side in ("in_channels", "out_channels"):
            if np.any(columns[side] % columns["groups"]):
                raise UsageError(
                    f"The '{side}' of a convolution must be a multiple of its groups.", code="kernel.groups"
                )
        return cls(**columns)

    def __len__(self) -> int:
        """Number of convolutions."""
        return len(self.batch)

    @property
    def flops(self) -> FloatArray:
        """Floating-point operations of the direct algorithm, two per multiply-accumulate."""
        gemm = self.gemm
        return gemm.flops

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

    @property
    def is_depthwise(self) -> npt.NDArray[np.bool_]:
        """Whether every group has a single input channel."""
        return np.asarray((self.groups > 1.0) & (self.groups == self.in_channels))


def conv2d_busy_ms(
    model: KernelModel,
    shape: ConvShape,
    devices: Sequence[DeviceSpec],
    *,
    coefficients: ConvCoefficients | None = None,
) -> FloatArray:
    """Time for which any convolution keeps each device busy, ms, fp32 without TF32.

    Args:
        model: The learned kernel times.
        shape: The convolutions.
        devices: The devices.
        coefficients: Assumptions of the mapping; by default those of `ConvCoefficients`.

    Returns:
        One time per device and convolution, ms.

    Shapes:
        Result: [D, n].
    """
    chosen = ConvCoefficients() if coefficients is None else coefficients
    busy_ms = np.empty((len(devices), len(shape)), dtype=np.float64)
    ungrouped = shape.groups == 1.0
    is_3x3 = _is_3x3(shape)
    depthwise = shape.is_depthwise
    winograd = ungrouped & is_3x3
    if winograd.any():
        busy_ms[:, winograd] = model.busy_ms(Family.CONV, _as_3x3(_pick(shape, winograd)), devices)
    pointwise = (shape.kernel_height == 1.0) & (shape.kernel_width == 1.0)
    for mask, family in ((ungrouped & ~is_3x3, Family.LINEAR), (~ungrouped & ~depthwise, Family.BMM)):
        if mask.any():
            efficiency = np.where((pointwise & ungrouped)[mask], 1.0, chosen.implicit_gemm_efficiency)
            busy_ms[:, mask] = model.busy_ms(family, _pick(shape, mask).gemm, devices) / efficiency
    if depthwise.any():
        part = _pick(shape, depthwise)
        bandwidth = np.array([device.bandwidth_gb_s * 1e6 for device in devices])[:, None]
        peak = np.array([device.peak_tflops["fp32"] * 1e9 for device in devices])[:, None]
        memory_ms = part.bytes / bandwidth / chosen.depthwise_bandwidth_efficiency
        compute_ms = part.flops / peak / chosen.depthwise_compute_efficiency
        busy_ms[:, depthwise] = np.maximum(memory_ms, compute_ms)
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
