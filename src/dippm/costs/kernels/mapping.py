"""Physics for what no table covers: any convolution, and any precision.

**Convolutions** (`conv2d_time_ms`), fp32 without TF32. The tables hold 3x3 with stride 1; the rest is reached through
the matrix product that it amounts to: ``m = batch x output pixels``, ``n = output channels``,
``k = input channels x kernel size``.

====================================  =================================================================================
3x3, stride 1, dilation 1, ungrouped  the conv model itself, at the output's size (Winograd and FFT included)
1x1, ungrouped                        the linear model; a stride only picks which pixels take part
other ungrouped kernels               the linear model, slowed by ``implicit_gemm_efficiency``; no Winograd
grouped                               the bmm model, one product per group, slowed likewise
depthwise (one channel per group)     traffic at a share of the memory bandwidth, arithmetic at a share of the peak
====================================  =================================================================================

**Precision** (`tensor_core_time_ms`, `resized_traffic_ms`). Nothing here was measured at reduced precision, so it is
the device's tensor-core peak, the waste of large tiles, alignment, and fewer bytes. Every coefficient stands in one of
the two small dataclasses, to be calibrated on whole models.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from dippm.costs.kernels.features import tile_waste
from dippm.costs.kernels.model import KernelModel
from dippm.costs.kernels.problems import ConvProblem, Family, FloatArray, GemmProblem, Sizes, equal_columns
from dippm.devices.spec import DeviceSpec
from dippm.errors import UsageError

__all__ = [
    "ConvCoefficients",
    "ConvShape",
    "TensorCoreCoefficients",
    "conv2d_floor_ms",
    "conv2d_time_ms",
    "resized_traffic_ms",
    "tensor_core_rate_tflops",
    "tensor_core_time_ms",
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


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorCoreCoefficients:
    """What the scaling to reduced precision assumes; physics, uncalibrated.

    Args:
        peak_fraction: Share of the tensor-core peak that a large, aligned product sustains, 0 to 1.
        bandwidth_fraction: Share of the memory bandwidth that its operands reach, 0 to 1.
        tile: Output tile, rows x columns, of tensor-core kernels.
        small_tile: Tile for outputs that fill too few of the large ones.
        depth_half: Reduced size at which the pipeline of a tile runs at half rate.
        alignment: Sizes must be multiples of this for full-width loads.
        unaligned_fraction: Rate left where they are not, 0 to 1.
    """

    peak_fraction: float = 0.75
    bandwidth_fraction: float = 0.8
    tile: tuple[int, int] = (256, 128)
    small_tile: tuple[int, int] = (64, 64)
    depth_half: float = 64.0
    alignment: int = 8
    unaligned_fraction: float = 0.4


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ConvShape:
    """Any two-dimensional convolution; one-dimensional ones have ``kernel_height`` and heights of 1.

    Args:
        batch: Samples.
        in_channels: Input channels, a multiple of ``groups``.
        out_channels: Output channels, a multiple of ``groups``.
        kernel_height: Kernel height.
        kernel_width: Kernel width.
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
        inputs = self.batch * self.in_channels * self.in_height * self.in_width
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


def conv2d_time_ms(
    model: KernelModel, shape: ConvShape, device: DeviceSpec, *, coefficients: ConvCoefficients | None = None
) -> FloatArray:
    """Time of any convolution on a device, ms, fp32 without TF32, launch included.

    Args:
        model: The learned kernel times.
        shape: The convolutions.
        device: The device.
        coefficients: Assumptions of the mapping; by default those of `ConvCoefficients`.

    Returns:
        One time per convolution, ms.
    """
    chosen = ConvCoefficients() if coefficients is None else coefficients
    time_ms = np.empty(len(shape), dtype=np.float64)
    ungrouped = shape.groups == 1.0
    pointwise = ungrouped & (shape.kernel_height == 1.0) & (shape.kernel_width == 1.0)
    winograd = (
        ungrouped
        & (shape.kernel_height == 3.0)
        & (shape.kernel_width == 3.0)
        & (shape.stride == 1.0)
        & (shape.dilation == 1.0)
    )
    depthwise = shape.is_depthwise
    grouped = ~ungrouped & ~depthwise
    other = ungrouped & ~pointwise & ~winograd
    if winograd.any():
        time_ms[winograd] = model.time_ms(Family.CONV, _as_3x3(_pick(shape, winograd)), device)
    if pointwise.any():
        time_ms[pointwise] = model.time_ms(Family.LINEAR, _pick(shape, pointwise).gemm, device)
    for mask, family in ((other, Family.LINEAR), (grouped, Family.BMM)):
        if mask.any():
            floor_ms = model.launch_floor_ms(family, device)
            whole_ms = model.time_ms(family, _pick(shape, mask).gemm, device)
            time_ms[mask] = floor_ms + np.maximum(whole_ms - floor_ms, 0.0) / chosen.implicit_gemm_efficiency
    if depthwise.any():
        part = _pick(shape, depthwise)
        memory_ms = part.bytes / (device.bandwidth_gb_s * 1e6) / chosen.depthwise_bandwidth_efficiency
        compute_ms = part.flops / (device.peak_tflops["fp32"] * 1e9) / chosen.depthwise_compute_efficiency
        time_ms[depthwise] = model.launch_floor_ms(Family.ELEMENTWISE, device) + np.maximum(memory_ms, compute_ms)
    return time_ms


def conv2d_floor_ms(model: KernelModel, shape: ConvShape, device: DeviceSpec) -> FloatArray:
    """The launch floor inside each time of :func:`conv2d_time_ms`, ms."""
    floors = {family: model.launch_floor_ms(family, device) for family in Family}
    is_3x3 = (shape.kernel_height == 3.0) & (shape.kernel_width == 3.0)
    is_3x3 &= (shape.stride == 1.0) & (shape.dilation == 1.0)
    ungrouped = np.where(is_3x3, floors[Family.CONV], floors[Family.LINEAR])
    grouped = np.where(shape.is_depthwise, floors[Family.ELEMENTWISE], floors[Family.BMM])
    return np.where(shape.groups == 1.0, ungrouped, grouped)


def tensor_core_rate_tflops(device: DeviceSpec, precision: str) -> float:
    """Peak rate for products of this precision, TFLOP/s.

    A card without the format falls back to what PyTorch does there: TF32 is ignored where it does not exist, fp16 runs
    on the ordinary lanes, bf16 at the fp32 rate.

    Args:
        device: The device.
        precision: ``"tf32"``, ``"fp16"`` or ``"bf16"``.

    Raises:
        UsageError: The precision is none of these.
    """
    if precision not in ("tf32", "fp16", "bf16"):
        raise UsageError(
            f"'precision' must be 'tf32', 'fp16' or 'bf16'. Got '{precision}' instead.", code="kernel.precision"
        )
    peak = device.peak_tflops
    rate = peak.get(f"{precision}_tensor")
    if rate is None:
        rate = max(peak["fp32"], peak.get("fp16", 0.0)) if precision == "fp16" else peak["fp32"]
    return rate


def tensor_core_time_ms(
    fp32_time_ms: FloatArray,
    problem: GemmProblem | ConvProblem | ConvShape,
    device: DeviceSpec,
    *,
    precision: str,
    floor_ms: float,
    coefficients: TensorCoreCoefficients | None = None,
) -> FloatArray:
    """Time of a matrix product or convolution at reduced precision, from its fp32 time, ms.

    The product's tiles run at a share of the tensor-core peak; operands move at a share of the bandwidth, in half the
    bytes for fp16 and bf16; the launch floor stays. Libraries keep the ordinary path where tensor cores lose, so no
    answer is slower than fp32. A Winograd or FFT gain in the fp32 time is not carried over: tensor-core convolutions
    are implicit products.

    Args:
        fp32_time_ms: Time of each problem in fp32, ms.
        problem: The problems.
        device: The device.
        precision: ``"tf32"``, ``"fp16"`` or ``"bf16"``.
        floor_ms: Launch floor inside the fp32 times, ms, from `KernelModel.launch_floor_ms`.
        coefficients: Assumptions; by default those of `TensorCoreCoefficients`.

    Returns:
        One time per problem, ms.

    Raises:
        UsageError: The precision is unknown.
    """
    chosen = TensorCoreCoefficients() if coefficients is None else coefficients
    rate = tensor_core_rate_tflops(device, precision)
    gemm = problem if isinstance(problem, GemmProblem) else _gemm_of(problem)
    ratio = 1.0 if precision == "tf32" else 0.5
    own_ms = np.maximum(fp32_time_ms - floor_ms, 0.0)
    memory_ms = ratio * problem.bytes / (device.bandwidth_gb_s * 1e6) / chosen.bandwidth_fraction
    if rate <= device.peak_tflops["fp32"]:
        # No faster unit: the same kernel, with fewer bytes where memory was what it waited for.
        full_ms = problem.bytes / (device.bandwidth_gb_s * 1e6)
        bound = np.clip(full_ms / np.maximum(own_ms, 1e-12), 0.0, 1.0)
        return np.asarray(np.minimum(fp32_time_ms, floor_ms + own_ms * (1.0 - bound + bound * ratio)))
    wastes = [
        tile_waste(gemm.m, gemm.n, gemm.b, tile=tile, sms=device.sm_count)[1] + np.log(penalty)
        # A quarter of the large tile's area loads its operands twice as often per product.
        for tile, penalty in ((chosen.tile, 1.0), (chosen.small_tile, 2.0))
    ]
    waste = np.exp(np.minimum(*wastes))
    pipeline = 1.0 + chosen.depth_half / gemm.k
    aligned = (gemm.k % chosen.alignment == 0) & (gemm.n % chosen.alignment == 0)
    fraction = chosen.peak_fraction * np.where(aligned, 1.0, chosen.unaligned_fraction)
    compute_ms = problem.flops / (rate * 1e9) * waste * pipeline / fraction
    return np.asarray(np.minimum(fp32_time_ms, floor_ms + np.maximum(compute_ms, memory_ms)))


def resized_traffic_ms(time_ms: FloatArray, *, floor_ms: float, ratio: float) -> FloatArray:
    """Time of a memory-bound kernel whose tensors take ``ratio`` times the bytes; the launch floor stays.

    Args:
        time_ms: Time at fp32, ms.
        floor_ms: Launch floor inside it, ms.
        ratio: Bytes per element over four, such as 0.5 for fp16; positive.

    Raises:
        UsageError: The ratio is not positive.
    """
    if not ratio > 0.0:
        raise UsageError(f"'ratio' must be positive. Got {ratio} instead.", code="kernel.ratio")
    return np.minimum(time_ms, floor_ms) + np.maximum(time_ms - floor_ms, 0.0) * ratio


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


def _gemm_of(problem: ConvProblem | ConvShape) -> GemmProblem:
    if isinstance(problem, ConvShape):
        return problem.gemm
    return GemmProblem(
        m=problem.batch * problem.height * problem.width,
        n=problem.out_channels,
        k=9.0 * problem.in_channels,
        b=np.ones_like(problem.batch),
    )
