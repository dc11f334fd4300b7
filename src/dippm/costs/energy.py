"""Energy of one call from its time and a power model of the board.

A board draws an idle share of its power limit while it waits for the host. Each clock cycle of lanes that have work,
each operation and each byte from its memory takes an energy of its own, until the limit holds the clocks back:

    E_kernel  = node * (running * lanes * clock * filled + flop * plain FLOPs + tensor * tensor FLOPs) + byte * bytes
    P_running = idle * P_limit + sum(E_kernel) / t_busy, at most P_limit
    P         = idle * P_limit + t_busy / t_call * (P_running - idle * P_limit)

with ``t_busy`` the time in which kernels run, and ``node`` the energy that the same logic takes in the process that
the chip is made in, 16 nm being 1. ``filled`` is the time for which a kernel's lanes have work: not while it starts
and ends, nor, where it is too small for the chip, whose lanes without work have their clocks held, for longer than its
rates are of their peaks, all three together, over the quarter at which all lanes have work. A convolution, however far
below its peaks, as one outside of tensor cores is, keeps those lanes at work for as long as it runs that its blocks lie
on. A board with a low limit for its chip, such as a T4, is therefore at its limit wherever its lanes have work, and one
with a high limit, such as an A100-SXM4, only in large products.

What measured calls of an architecture say beyond that is a factor of its own
(:class:`~dippm.costs.power_correction.PowerCorrection`).

``node`` follows from what foundries state for the same speed: TSMC's 12FFN a tenth less than 16FF, N7 60 % less than
16FF, N5, of which NVIDIA's 4N is a form, 30 % less than N7; Samsung's 8LPP half of its first process of 14 nm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dippm.costs.calls import sum_by_call
from dippm.costs.edges import IndexArray
from dippm.costs.power_correction import PowerCorrection
from dippm.costs.precision import Arithmetic
from dippm.costs.rates import architecture_of
from dippm.costs.tensor_rates import tensor_tflops
from dippm.devices import DeviceSpec, latest_figure
from dippm.units import GIGA, MEGA, PICO, TERA

__all__ = [
    "BOARD_USE",
    "ChipProcess",
    "KernelWork",
    "PowerModel",
    "chip_process",
    "describe_board_use",
    "is_always_limited",
    "power_w",
]

FloatArray = npt.NDArray[np.float64]


# Shares of the peaks of FP32, tensor cores and memory, added up, at which all lanes have work, and for how long those
# of a kernel have none while it starts and ends. From 203 energies of an H100 and an H200 (data/labels), captured or
# without waiting for the host: with both and the blocks of convolutions the power of models, families and boards that
# were left out is 6.9, 7.1 and 7.4 % off (6.2, 6.5 and 7.3 of the 179 that nothing disturbed, and of these 4.7, 5.7 and
# 7.1 with the correction that they tell), without the blocks 8.9, 9.4 and 8.6, with one rate for a whole call and no
# starts 11 to 17, with lanes that always run 42. The square root of the use, up to 0.6, instead of the blocks brought
# them to 8.0, 8.4 and 7.7, and a P100 that was left out from 7 to 34; blocks bring it from 7 to 9, and an A100-SXM4
# from 12 to 7.
_FULL_USE = 0.25
_RAMP_S = 4.5e-6
# Numbers that one block of a convolution computes, 64 x 128 as those of most of cuDNN's kernels do.
_BLOCK_RESULTS = 8192.0
#: What :func:`describe_board_use` tells: the time in which lanes of kernels have work; rates of the peaks, of what
#: passes the bandwidth, and of the memory in kernels that neither convolve nor multiply matrices; the time of
#: convolutions, that in which their lanes have work, of products of matrices and of convolutions outside of tensor
#: cores, all as parts of the call's time; and the logarithm of a kernel's mean time, s.
BOARD_USE = (
    "filled", "plain", "tensor", "memory", "cache", "memory_elsewhere", "convolution",
    "convolution_filled", "product", "plain_convolution", "log_kernel_s",
)  # fmt: skip
_LEAST_KERNEL_S = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KernelWork:
    """What the kernels of a call do at each batch.

    Args:
        runs: How often each kernel runs.
        plain_flops: FLOPs outside of tensor cores, in all runs of a kernel.
        tensor_flops: Those on tensor cores, as so many of FP16.
        traffic_bytes: Bytes read and written in all runs; what passes the bandwidth comes from caches.
        results: Numbers that a convolution computes in one run, whose blocks follow from them, or whose gradient a
            kernel computes; 0 of other kernels.

    Shapes:
        runs: [K]; all others: [B, K].
    """

    runs: FloatArray
    plain_flops: FloatArray
    tensor_flops: FloatArray
    traffic_bytes: FloatArray
    results: FloatArray

    def take(self, kernels: slice) -> KernelWork:
        """The work of some of the kernels."""
        return KernelWork(**{each.name: getattr(self, each.name)[..., kernels] for each in fields(self)})


@dataclass(frozen=True, kw_only=True, slots=True)
class ChipProcess:
    """Process that chips are made in.

    Args:
        name: What its smallest structures are called, such as ``"7 nm"``.
        energy: Energy of the same logic at the same speed, 16 nm being 1.
    """

    name: str
    energy: float


# By the first compute capability that is made so.
_PROCESSES: Mapping[tuple[int, int], ChipProcess] = {
    (6, 0): ChipProcess(name="16 nm", energy=1.0),
    (7, 0): ChipProcess(name="12 nm", energy=0.9),
    (8, 0): ChipProcess(name="7 nm", energy=0.4),
    (8, 6): ChipProcess(name="8 nm", energy=0.5),
    (8, 9): ChipProcess(name="4 nm", energy=0.28),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerModel:
    """Coefficients of the power model.

    Args:
        idle: Share of the board's power limit that is drawn while no kernel runs, clocks up.
        running_pj: Energy of a clock cycle of one FP32 lane that has work, pJ at 16 nm.
        flop_pj: Energy of a FLOP outside of tensor cores, pJ at 16 nm.
        tensor_pj: Energy of a FLOP of FP16 on tensor cores, pJ at 16 nm; other formats take it over their rate beside
            FP16's (:func:`dippm.costs.tensor_rates.fp16_operations`).
        byte_pj: Energy of a byte read from or written to device memory, pJ.
        measured: By compute capability, such as ``"9.0"``, coefficients that were fitted on boards of that architecture
            alone and stand for these there.
        correction: What the calls that these were fitted on say beyond them.
    """

    idle: float
    running_pj: float
    flop_pj: float
    tensor_pj: float
    byte_pj: float
    measured: Mapping[str, PowerModel] = field(default_factory=dict)
    correction: PowerCorrection | None = None

    @classmethod
    def from_json(cls, held: Mapping[str, Any]) -> PowerModel:
        """The model that ``dataclasses.asdict`` gave.

        Raises:
            ValueError: Its correction is damaged, or asks for what this version does not tell of a call.
        """
        measured = {name: cls.from_json(own) for name, own in held.get("measured", {}).items()}
        own = held.get("correction")
        correction = None if own is None else PowerCorrection.from_json(own)
        if correction is not None and correction.columns != BOARD_USE:
            raise ValueError("a correction of power by other figures")
        return cls(**{**held, "measured": measured, "correction": correction})

    def on(self, device: DeviceSpec) -> PowerModel:
        """The coefficients that hold on a device."""
        return self.measured.get(architecture_of(device), self)

    def idle_w(self, device: DeviceSpec) -> float:
        """Power of a board while no kernel runs, clocks up, W."""
        return self.on(device).idle * device.board_power_w


@lru_cache(maxsize=256)
def chip_process(device: DeviceSpec) -> ChipProcess:
    """The process that a device's chip is made in, by its compute capability."""
    return latest_figure(_PROCESSES, device)


def is_always_limited(model: PowerModel, device: DeviceSpec) -> bool:
    """Whether clock cycles alone would take a board's limit: any kernel that fills the chip is said to draw all of it.

    Args:
        model: Coefficients.
        device: The device.
    """
    model = model.on(device)
    cycles_w = PICO * chip_process(device).energy * model.running_pj * _cycles_per_s(device)
    return cycles_w >= (1.0 - model.idle) * device.board_power_w


def power_w(
    model: PowerModel,
    device: DeviceSpec,
    *,
    call_s: FloatArray,
    kernel_s: FloatArray,
    work: KernelWork,
    start: IndexArray | None = None,
) -> FloatArray:
    """Mean power of the board over a call, W.

    Args:
        model: Coefficients.
        device: The device.
        call_s: Time of the call, s; none of it is less than what the kernels take together.
        kernel_s: Time of one run of each kernel, s.
        work: What the kernels do.
        start: First kernel of each call where there are several; see :mod:`dippm.costs.calls`.

    Shapes:
        call_s and result: [..., B], and [..., B, G] of several calls; kernel_s: [..., B, K]; start: [G].
    """
    limit, idle = device.board_power_w, model.idle_w(device)
    model = model.on(device)
    use = _BoardUse.of(device, kernel_s, work)
    node = PICO * chip_process(device).energy
    energy_j = (
        node * model.running_pj * _cycles_per_s(device) * sum_by_call(use.filled_s, start)
        + node * sum_by_call(model.flop_pj * work.plain_flops + model.tensor_pj * work.tensor_flops, start)
        + PICO * model.byte_pj * sum_by_call(use.from_memory, start)
    )
    busy_s = sum_by_call(use.running_s, start)
    result: FloatArray = idle + np.minimum(energy_j, (limit - idle) * busy_s) / call_s
    if model.correction is not None:
        result = np.clip(result * model.correction.factor(use.describe(device, call_s, work, start)), idle, limit)
    return result


def describe_board_use(
    device: DeviceSpec,
    *,
    call_s: FloatArray,
    kernel_s: FloatArray,
    work: KernelWork,
    start: IndexArray | None = None,
) -> FloatArray:
    """How a call uses its board, by :data:`BOARD_USE`; arguments as those of :func:`power_w`.

    Shapes:
        Result: [..., B, len(BOARD_USE)], or [..., B, G, len(BOARD_USE)].
    """
    return _BoardUse.of(device, kernel_s, work).describe(device, call_s, work, start)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _BoardUse:
    """For how long the lanes of each kernel have work.

    Args:
        running_s: Time of all runs of each kernel, s.
        filled_s: Part of it in which its lanes have work, s.
        from_memory: Bytes that come from or go to device memory.

    Shapes:
        All: [..., B, K].
    """

    running_s: FloatArray
    filled_s: FloatArray
    from_memory: FloatArray

    @classmethod
    def of(cls, device: DeviceSpec, kernel_s: FloatArray, work: KernelWork) -> _BoardUse:
        peaks = _Peaks.of(device)
        running_s = kernel_s * work.runs
        from_memory = np.minimum(work.traffic_bytes, peaks.memory * running_s)
        used_s = work.plain_flops / peaks.plain + work.tensor_flops / peaks.tensor + from_memory / peaks.memory
        steady_s = np.maximum(running_s - work.runs * _RAMP_S, 0.0)
        under_blocks = np.minimum(work.results / (_BLOCK_RESULTS * device.sm_count), 1.0)
        filled_s = np.maximum(np.minimum(steady_s, used_s / _FULL_USE), steady_s * under_blocks)
        return cls(running_s=running_s, filled_s=filled_s, from_memory=from_memory)

    def describe(
        self, device: DeviceSpec, call_s: FloatArray, work: KernelWork, start: IndexArray | None
    ) -> FloatArray:
        """What :func:`describe_board_use` gives."""
        peaks = _Peaks.of(device)
        convolves, on_tensor = work.results > 0.0, work.tensor_flops > 0.0
        memory_s = self.from_memory / peaks.memory
        parts = (
            self.filled_s,
            work.plain_flops / peaks.plain,
            work.tensor_flops / peaks.tensor,
            memory_s,
            work.traffic_bytes / peaks.memory - memory_s,
            memory_s * ~(convolves | on_tensor),
            self.running_s * convolves,
            self.filled_s * convolves,
            self.running_s * (on_tensor & ~convolves),
            self.running_s * (convolves & ~on_tensor),
        )
        shares = [sum_by_call(part, start) / call_s for part in parts]
        kernels = np.maximum(sum_by_call((self.running_s > 0.0) * work.runs, start), 1.0)
        mean_s = np.maximum(sum_by_call(self.running_s, start) / kernels, _LEAST_KERNEL_S)
        return np.stack([*shares, np.log(mean_s)], axis=-1)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Peaks:
    """Peaks of a device: FLOP/s outside of tensor cores, on them in FP16, and bytes per second."""

    plain: float
    tensor: float
    memory: float

    @classmethod
    def of(cls, device: DeviceSpec) -> _Peaks:
        plain = device.peak_tflops["fp32"]
        return cls(
            plain=plain * TERA,
            tensor=(tensor_tflops(device, Arithmetic.FP16) or plain) * TERA,
            memory=device.bandwidth_gb_s * GIGA,
        )


def _cycles_per_s(device: DeviceSpec) -> float:
    """Clock cycles of all FP32 lanes in a second."""
    return device.sm_count * device.fp32_lanes_per_sm * device.boost_clock_mhz * MEGA
