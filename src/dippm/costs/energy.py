"""Energy of one call from its time and a power model of the board.

A board draws an idle share of its power limit while it waits for the host. While a kernel runs, each clock cycle of its
lanes, each operation and each byte from its memory takes an energy of its own, until the limit holds the clocks back:

    P_running = idle * P_limit
                + node * (filled * running * lanes * clock + flop * plain FLOP/s + tensor * tensor FLOP/s)
                + byte * bytes/s,  at most P_limit
    P         = idle * P_limit + busy * (P_running - idle * P_limit)

with ``busy`` the part of the time in which a kernel runs, rates those of the busy time, and ``node`` the energy that
the same logic takes in the process that the chip is made in, 16 nm being 1. Kernels too small for the chip leave lanes
without work, whose clock is held: ``filled`` is what the rates are of their peaks, all three together, over the 0.3 at
which all lanes have work, at most 1. A board with a low limit for its chip, such as a T4, is therefore at its limit
wherever its lanes have work, and one with a high limit, such as an A100-SXM4, only in large products.

``node`` follows from what foundries state for the same speed: TSMC's 12FFN a tenth less than 16FF, N7 60 % less than
16FF, N5, of which NVIDIA's 4N is a form, 30 % less than N7; Samsung's 8LPP half of its first process of 14 nm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.precision import Arithmetic
from dippm.costs.tensor_rates import tensor_tflops
from dippm.devices import DeviceSpec
from dippm.units import GIGA, MEGA, PICO, TERA

__all__ = ["ChipProcess", "PowerModel", "chip_process", "is_always_limited", "power_w"]

FloatArray = npt.NDArray[np.float64]


# Shares of the peaks of FP32, tensor cores and memory, added up, at which all lanes have work. From 155 energies of an
# H200 (data/labels/h200), captured or without waiting for the host: 0.25 to 0.35 give 10 to 14 % mean error of the
# power, lanes that always run 42 %.
_FULL_USE = 0.3


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
    """

    idle: float
    running_pj: float
    flop_pj: float
    tensor_pj: float
    byte_pj: float


def chip_process(device: DeviceSpec) -> ChipProcess:
    """The process that a device's chip is made in, by its compute capability."""
    return _PROCESSES[
        max((first for first in _PROCESSES if first <= device.compute_capability), default=min(_PROCESSES))
    ]


def is_always_limited(model: PowerModel, device: DeviceSpec) -> bool:
    """Whether clock cycles alone would take a board's limit: any kernel that fills the chip is said to draw all of it.

    Args:
        model: Coefficients.
        device: The device.
    """
    cycles_w = PICO * chip_process(device).energy * model.running_pj * _cycles_per_s(device)
    return cycles_w >= (1.0 - model.idle) * device.board_power_w


def power_w(
    model: PowerModel,
    device: DeviceSpec,
    *,
    busy_share: FloatArray,
    plain_flops_per_s: FloatArray,
    tensor_flops_per_s: FloatArray,
    bytes_per_s: FloatArray,
) -> FloatArray:
    """Mean power of the board, W.

    Args:
        model: Coefficients.
        device: The device.
        busy_share: Part of the time in which a kernel runs, 0 to 1.
        plain_flops_per_s: FLOP/s over the busy time outside of tensor cores.
        tensor_flops_per_s: The same on tensor cores, as so many of FP16.
        bytes_per_s: Memory traffic over the busy time; what passes the bandwidth comes from caches.

    Shapes:
        Arrays and result: [B].
    """
    limit, idle = device.board_power_w, model.idle * device.board_power_w
    operations = model.flop_pj * plain_flops_per_s + model.tensor_pj * tensor_flops_per_s
    from_memory = np.minimum(bytes_per_s, device.bandwidth_gb_s * GIGA)
    tensor_peak = tensor_tflops(device, Arithmetic.FP16) or device.peak_tflops["fp32"]
    use = (
        plain_flops_per_s / (device.peak_tflops["fp32"] * TERA)
        + tensor_flops_per_s / (tensor_peak * TERA)
        + from_memory / (device.bandwidth_gb_s * GIGA)
    )
    logic = model.running_pj * _cycles_per_s(device) * np.minimum(use / _FULL_USE, 1.0) + operations
    traffic = model.byte_pj * from_memory
    running = np.minimum(idle + PICO * (chip_process(device).energy * logic + traffic), limit)
    result: FloatArray = idle + busy_share * (running - idle)
    return result


def _cycles_per_s(device: DeviceSpec) -> float:
    """Clock cycles of all FP32 lanes in a second."""
    return device.sm_count * device.fp32_lanes_per_sm * device.boost_clock_mhz * MEGA
