"""What a kernel's time depends on: dimensionless features from a problem and a device's data sheet.

Every feature is a logarithm of a ratio, a remainder or a flag, so that a device nobody measured lands among the ones
that were. The two ideas behind them:

* **Tiles and waves.** A matrix kernel cuts its output into tiles of, say, 128 x 64, and gives each tile to one SM.
  What the tiles overhang is wasted, and so is the last, partly filled wave of tiles. `tile_waste` says how much for
  each tile size that GEMM libraries ship; the network learns which one the library picks.
* **Algorithms.** A 3x3 convolution may run as implicit GEMM, as Winograd F(2x2, 3x3) or F(4x4, 3x3), or by FFT. Each
  gets a time estimate from its own FLOPs, bytes and tile waste; the library picks the fastest.

Next to the features each family has a *baseline* time in ms: a launch floor plus the roofline. The network predicts the
logarithm of measured time over baseline, and never anything absolute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dippm.costs.kernels.problems import (
    ELEMENTWISE_OPERATORS,
    ConvProblem,
    ElementwiseProblem,
    Family,
    FloatArray,
    GemmProblem,
    Problem,
    RowProblem,
)
from dippm.devices.spec import DeviceSpec, latest_figure
from dippm.errors import UsageError

__all__ = [
    "COLUMN_GROUPS",
    "DEVICE_FEATURES",
    "LAUNCH_FLOOR_MS",
    "Features",
    "compute_features",
    "device_features",
    "lower_bound_ms",
    "tile_waste",
]

#: Reference launch floor. Small kernels of the measured tables level off at 0.025 - 0.06 ms, most of it the host's
#: share of one eager call; the network learns the rest.
LAUNCH_FLOOR_MS = 0.03

#: Output tiles (rows of the first operand x columns of the second) that GEMM libraries ship for FP32.
_TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128), (64, 32), (32, 32))
#: Tiles of the convolution algorithms: implicit GEMM, fused Winograd, Winograd in three kernels.
_IMPLICIT_TILES = ((128, 128), (128, 64), (64, 128), (128, 32), (32, 128), (64, 64))
_FUSED_TILES = ((32, 32), (64, 32), (128, 8))
_WINOGRAD_TILES = ((128, 128), (128, 64), (64, 128), (32, 128), (128, 32), (64, 64))

#: Shared memory per SM in KiB by the first compute capability that has it (CUDA C++ Programming Guide, "Technical
#: Specifications per Compute Capability"); it bounds how deep a tile's pipeline can be.
_SHARED_MEMORY_KIB = {
    (6, 0): 64.0,
    (6, 1): 96.0,
    (7, 0): 96.0,
    (7, 5): 64.0,
    (8, 0): 164.0,
    (8, 6): 100.0,
    (9, 0): 228.0,
    (12, 0): 100.0,
}

#: Switching energy per operation relative to a 16 nm process, by the first compute capability that has it. Rough
#: estimates from the process of each generation, no data-sheet figures: they only have to tell a card that throttles
#: from one that does not. The power model has better ones (:mod:`dippm.costs.energy`); networks were trained on these.
_RELATIVE_ENERGY = {
    (6, 0): 1.0,
    (7, 0): 0.8,
    (8, 0): 0.45,
    (8, 6): 0.55,
    (8, 9): 0.3,
}

#: Watts per (16 nm equivalent) TFLOP/s above which more power brings no more clock.
_AMPLE_WATTS_PER_TFLOP = 20.0

#: Columns that a network for unmeasured devices may be made blind to, because they give a device away or leave the
#: range of the others: bare sizes, operands against the L2 cache, and the waste of tiles smaller than 128 x 64.
COLUMN_GROUPS: dict[Family, dict[str, tuple[int, ...]]] = {
    Family.LINEAR: {"sizes": (0, 1), "cache": (7, 8, 9), "small tiles": (14, 15, 16, 17, 18, 20)},
    Family.BMM: {"sizes": (0, 1, 2, 3), "cache": (7, 8, 9), "small tiles": (14, 15, 16, 17, 18, 20)},
    Family.CONV: {"sizes": (0, 1, 2, 3), "cache": (7, 8, 9)},
}

#: Names of the trailing columns of every feature matrix: those that belong to the device alone.
DEVICE_FEATURES = (
    "log_sms",
    "log_flops_per_sm",
    "log_balance",
    "log_l2_per_sm",
    "log_watts_per_tflop",
    "log_base_over_boost",
    "log_shared_memory",
    "log_bandwidth",
    "log_power_headroom",
    "has_unified_l1",
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Features:
    """Features of many problems, each on every device or each on a device of its own.

    Args:
        matrix: Shape (devices, problems, features) or (problems, features), float32; the last
            ``len(DEVICE_FEATURES)`` columns describe the device.
        baseline_ms: Shape (devices, problems) or (problems,): launch floor plus roofline, ms.
        peak_rate_ms: Shape as the baseline: time at the device's peak rates by the tile or algorithm that wastes least,
            with all traffic from the device's memory, ms.
    """

    matrix: npt.NDArray[np.float32]
    baseline_ms: FloatArray
    peak_rate_ms: FloatArray

    def take(self, devices: Sequence[int]) -> Features:
        """The same on some of the devices, by their positions."""
        if len(devices) == len(self.matrix):
            return self
        of_all = self.matrix, self.baseline_ms, self.peak_rate_ms
        matrix, baseline_ms, peak_rate_ms = (each[np.asarray(devices)] for each in of_all)
        return Features(matrix=matrix, baseline_ms=baseline_ms, peak_rate_ms=peak_rate_ms)


@lru_cache(maxsize=256)
def device_features(device: DeviceSpec) -> FloatArray:
    """The device's own columns, in the order of `DEVICE_FEATURES`, read-only; numbers of the data sheet only."""
    peak = device.peak_tflops["fp32"]
    shared = latest_figure(_SHARED_MEMORY_KIB, device)
    ratios = (
        device.sm_count / 64.0,
        1000.0 * peak / device.sm_count / 180.0,
        1000.0 * peak / device.bandwidth_gb_s / 15.0,
        1024.0 * _l2_mib(device) / device.sm_count / 100.0,
        device.board_power_w / peak / 15.0,
        device.base_clock_mhz / device.boost_clock_mhz,
        shared / 100.0,
        device.bandwidth_gb_s / 800.0,
    )
    energy = latest_figure(_RELATIVE_ENERGY, device)
    headroom = min(1.0, device.board_power_w / peak / energy / _AMPLE_WATTS_PER_TFLOP)
    # Volta joined L1 and shared memory and gave integers a datapath of their own; GEMM kernels gained from both.
    unified = 1.0 if device.compute_capability >= (7, 0) else 0.0
    columns = np.append(np.log(np.array(ratios, dtype=np.float64)), [np.log(headroom), unified])
    columns.flags.writeable = False
    return columns


def _l2_mib(device: DeviceSpec) -> float:
    # A device file may say 0 where the cache is unknown; logarithms need something.
    return max(device.l2_mb, 0.25)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Sheets:
    """Rates of several devices, one row each, so that they broadcast against problems.

    Args:
        peak: FP32 peak, FLOP per ms.
        bandwidth: Bytes per ms.
        l2: L2 cache, bytes.
        sms: Streaming multiprocessors.

    Shapes:
        All [D, 1].
    """

    peak: FloatArray
    bandwidth: FloatArray
    l2: FloatArray
    sms: FloatArray

    @classmethod
    def of(cls, devices: Sequence[DeviceSpec]) -> _Sheets:
        def column(values: Iterable[float]) -> FloatArray:
            return np.array(list(values), dtype=np.float64)[:, None]

        return cls(
            peak=column(device.peak_tflops["fp32"] * 1e9 for device in devices),
            bandwidth=column(device.bandwidth_gb_s * 1e6 for device in devices),
            l2=column(_l2_mib(device) * 2.0**20 for device in devices),
            sms=column(device.sm_count for device in devices),
        )


def compute_features(family: Family, problem: Problem, devices: Sequence[DeviceSpec]) -> Features:
    """Features and baseline of a family's problems on each device.

    Args:
        family: The kernel family.
        problem: Its problems; the type must be the family's.
        devices: The devices; only their numbers are used.

    Returns:
        Feature matrix and baseline times.

    Raises:
        UsageError: The problem's type does not belong to the family.
    """
    sheets = _Sheets.of(devices)
    if isinstance(problem, GemmProblem) and family in (Family.LINEAR, Family.BMM):
        columns, baseline, peak_rate = _gemm(problem, sheets)
    elif isinstance(problem, ConvProblem) and family is Family.CONV:
        columns, peak_rate = _conv(problem, sheets)
        baseline = LAUNCH_FLOOR_MS + peak_rate
    elif isinstance(problem, ElementwiseProblem) and family is Family.ELEMENTWISE:
        columns, peak_rate = _elementwise(problem, sheets)
        baseline = LAUNCH_FLOOR_MS + peak_rate
    elif isinstance(problem, RowProblem) and family in (Family.SOFTMAX, Family.LAYER_NORM):
        columns, peak_rate = _rows(problem, sheets)
        baseline = LAUNCH_FLOOR_MS + peak_rate
    else:
        raise UsageError(
            f"A {type(problem).__name__} is no problem of the family '{family.value}'.", code="kernel.problem"
        )
    own = np.stack([device_features(device) for device in devices])
    count = sum(1 if column.ndim < 3 else len(column) for column in columns)
    matrix = np.empty((len(devices), len(problem), count + own.shape[1]), dtype=np.float32)
    position = 0
    for column in columns:
        if column.ndim < 3:
            matrix[..., position] = column
            position += 1
        else:
            matrix[..., position : position + len(column)] = np.moveaxis(column, 0, -1)
            position += len(column)
    matrix[..., position:] = own[:, None, :]
    return Features(matrix=matrix, baseline_ms=baseline, peak_rate_ms=peak_rate)


def lower_bound_ms(family: Family, problem: Problem, devices: Sequence[DeviceSpec]) -> FloatArray:
    """Time that no kernel can beat, ms.

    Arithmetic at peak rate (a 3x3 convolution may save up to 4x by Winograd's F(4x4, 3x3), more by FFT: 8x is allowed),
    and device memory traffic at peak bandwidth for what cannot stay in the L2 cache from one call to the next.

    Shapes:
        Result: (devices, problems).
    """
    sheets = _Sheets.of(devices)
    memory_ms = np.maximum(problem.bytes - sheets.l2, 0.0) / sheets.bandwidth
    if family is Family.CONV and isinstance(problem, ConvProblem):
        return np.maximum(memory_ms, problem.flops / 8.0 / sheets.peak)
    if isinstance(problem, GemmProblem):
        return np.maximum(memory_ms, problem.flops / sheets.peak)
    return memory_ms


def tile_waste(
    rows: FloatArray,
    columns: FloatArray,
    products: FloatArray | float,
    *,
    tiles: Sequence[tuple[int, int]],
    sms: FloatArray | float,
) -> tuple[FloatArray, FloatArray]:
    """What cutting an output into tiles wastes: overhang of edge tiles, and the last wave's idle SMs.

    Args:
        rows: Rows of each output.
        columns: Columns of each output.
        products: Independent outputs.
        tiles: Sizes of a tile to try: rows and columns.
        sms: Streaming multiprocessors of each device.

    Returns:
        ``log(tiles / SMs)`` and ``log(work of the busiest SM x SMs / useful work)``, the latter 0 or more.

    Shapes:
        rows, columns, products: [n]; sms: [D, 1]; results: [len(tiles), D, n].
    """
    high, wide = (np.array(side, dtype=np.float64)[:, None, None] for side in zip(*tiles, strict=True))
    cut = products * np.ceil(rows / high) * np.ceil(columns / wide)
    per_sm = cut / sms
    useful = products * rows * columns / (high * wide * sms)
    return np.log(per_sm), np.log(np.ceil(per_sm) / useful)


def _gemm(problem: GemmProblem, sheets: _Sheets) -> tuple[list[FloatArray], FloatArray, FloatArray]:
    """Features of plain and batched matrix products, their baseline, and their time at peak rates."""
    m, n, k, b = problem.m, problem.n, problem.k, problem.b
    size = problem.bytes
    compute_ms, memory_ms = problem.flops / sheets.peak, size / sheets.bandwidth
    columns = [
        np.log(m),
        np.log(n),
        np.log(k),
        np.log(b),
        np.log(compute_ms / LAUNCH_FLOOR_MS),
        np.log(memory_ms / LAUNCH_FLOOR_MS),
        np.log(compute_ms / memory_ms),
        np.log(size / sheets.l2),
        np.log(4.0 * b * k * n / sheets.l2),
        np.log(4.0 * b * m * k / sheets.l2),
    ]
    per_sm, waste = tile_waste(m, n, b, tiles=_TILES, sms=sheets.sms)
    # Tiles per SM of the largest and of the smallest tile, each behind that tile's waste.
    least_waste = waste.min(axis=0)
    columns += [waste[0], per_sm[0], waste[1:], per_sm[-1], least_waste]
    columns += [np.asarray(extent % step == 0, dtype=np.float64) for extent in (k, n, m) for step in (2, 4)]
    columns.append((k % 8) / 8.0)
    baseline = LAUNCH_FLOOR_MS + np.maximum(compute_ms, memory_ms)
    return columns, baseline, np.maximum(compute_ms * np.exp(least_waste), memory_ms)


def _conv(problem: ConvProblem, sheets: _Sheets) -> tuple[list[FloatArray], FloatArray]:
    """Features of 3x3 convolutions, one time estimate per algorithm among them, and the shortest of those."""
    batch, cin, cout = problem.batch, problem.in_channels, problem.out_channels
    height, width = problem.height, problem.width
    peak, bandwidth, sms = sheets.peak, sheets.bandwidth, sheets.sms
    size = problem.bytes
    compute_ms, memory_ms = problem.flops / peak, size / bandwidth
    pixels = batch * height * width
    columns = [
        np.log(batch),
        np.log(cin),
        np.log(cout),
        np.log(height * width),
        np.log(compute_ms / LAUNCH_FLOOR_MS),
        np.log(memory_ms / LAUNCH_FLOOR_MS),
        np.log(compute_ms / memory_ms),
        np.log(size / sheets.l2),
        np.log(36.0 * cin * cout / sheets.l2),
        np.log(4.0 * pixels * cin / sheets.l2),
    ]
    # Implicit GEMM: output channels x pixels, reduced over 9 cin.
    per_sm, waste = tile_waste(cout, pixels, 1.0, tiles=_IMPLICIT_TILES, sms=sms)
    columns += [waste[0], per_sm[0], waste[1:]]
    estimates = [np.maximum(compute_ms * np.exp(waste), memory_ms)]
    # Winograd, fused F(2x2, 3x3): 16 instead of 36 products per 2x2 outputs.
    patches = batch * np.ceil(height / 2.0) * np.ceil(width / 2.0)
    per_sm, waste = tile_waste(cout, patches, 1.0, tiles=_FUSED_TILES, sms=sms)
    columns += [waste[0], per_sm[0], waste[1:]]
    estimates.append(np.maximum(2.0 * 16.0 * patches * cout * cin / peak * np.exp(waste), memory_ms))
    # Winograd in three kernels, F(4x4, 3x3): 36 products of (cout, patches, cin), both transforms through memory.
    patches = batch * np.ceil(height / 4.0) * np.ceil(width / 4.0)
    moved_ms = 4.0 * (72.0 * patches * (cin + cout) + pixels * (cin + cout) + 81.0 * cin * cout) / bandwidth
    columns += [np.log(moved_ms / compute_ms), np.log(16.0 * patches / pixels), np.log(patches)]
    _, waste = tile_waste(cout, patches, 36.0, tiles=_WINOGRAD_TILES, sms=sms)
    columns.append(waste)
    estimates.append(72.0 * patches * cout * cin / peak * np.exp(waste) + moved_ms)
    # FFT in tiles of s x s, s - 2 outputs wide: complex products of (cout, patches, cin) for s (s/2 + 1) frequencies.
    for side in (16.0, 32.0):
        frequencies = side * (side / 2.0 + 1.0)
        patches = batch * np.ceil(height / (side - 2.0)) * np.ceil(width / (side - 2.0))
        moved = 8.0 * frequencies * 2.0 * (patches * (cin + cout) + cin * cout) / bandwidth
        _, waste = tile_waste(cout, patches, frequencies, tiles=((64, 64),), sms=sms)
        columns.append(waste)
        estimates.append(8.0 * frequencies * patches * cin * cout / peak * np.exp(waste) + moved)
    times = np.concatenate(estimates)
    fastest = times.min(axis=0)
    columns += [np.log(times / compute_ms), np.log(fastest / compute_ms)]
    columns += [np.asarray(count % step == 0, dtype=np.float64) for count in (cin, cout) for step in (2, 4)]
    columns += [(height % 4) / 4.0, (height % 2) / 2.0]
    return columns, fastest


def _elementwise(problem: ElementwiseProblem, sheets: _Sheets) -> tuple[list[FloatArray], FloatArray]:
    """Features of element-wise operators (traffic against launch and cache, the operator), and the traffic's time."""
    size = problem.bytes
    memory_ms = size / sheets.bandwidth
    # The vectorised kernel handles 4 elements per thread in blocks of 128 threads.
    blocks_per_sm = problem.elements / 512.0 / sheets.sms
    columns = [
        np.log(problem.elements),
        np.log(memory_ms / LAUNCH_FLOOR_MS),
        np.log(size / sheets.l2),
        np.log(blocks_per_sm),
        np.asarray(problem.elements % 4 == 0, dtype=np.float64),
    ]
    codes = np.arange(len(ELEMENTWISE_OPERATORS))
    columns.append(np.asarray(problem.operator == codes[:, None, None], dtype=np.float64))
    return columns, memory_ms


def _rows(problem: RowProblem, sheets: _Sheets) -> tuple[list[FloatArray], FloatArray]:
    """Features of softmax and layer norm (traffic, rows per SM, how a row fits a warp), and the traffic's time."""
    rows, width = problem.rows, problem.width
    size = problem.bytes
    memory_ms = size / sheets.bandwidth
    power = np.ceil(np.log2(np.maximum(width, 1.0)))
    columns = [
        np.log(rows),
        np.log(width),
        np.log(memory_ms / LAUNCH_FLOOR_MS),
        np.log(size / sheets.l2),
        np.log(rows / sheets.sms),
        # softmax: rows up to 1024 wide stay in one warp's registers, padded to a power of two
        np.asarray(width <= 1024, dtype=np.float64),
        power - np.log2(width),
        power / 10.0,
        np.log(np.ceil(width / 1024.0) * 1024.0 / width),
        np.asarray(width % 4 == 0, dtype=np.float64),
        np.asarray(width % 2 == 0, dtype=np.float64),
    ]
    return columns, memory_ms
