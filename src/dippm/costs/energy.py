"""Energy of one call from its time and a power model of the board.

A board draws an idle share of its power limit while it waits for the host, and, while a kernel runs, a share that grows
with how much of its peak arithmetic and of its peak bandwidth the kernels use:

    P / P_limit = idle + busy * (base + compute * u_flops + memory * u_bytes - idle),  at most 1

with ``busy`` the part of the time in which a kernel runs, and the utilisations those of the busy time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.devices import DeviceSpec
from dippm.units import GIGA, TERA

__all__ = ["PowerModel", "power_w"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerModel:
    """Coefficients of the power model, shares of the board's power limit.

    Args:
        idle: Drawn while no kernel runs, clocks up.
        base: Drawn by a running kernel that uses next to nothing.
        compute: Added at full use of the FP32 peak.
        memory: Added at full use of the peak bandwidth; 0 in the shipped model.
    """

    idle: float
    base: float
    compute: float
    memory: float


def power_w(
    model: PowerModel,
    device: DeviceSpec,
    *,
    busy_share: FloatArray,
    flops_per_s: FloatArray,
    bytes_per_s: FloatArray,
) -> FloatArray:
    """Mean power of the board, W.

    Args:
        model: Coefficients.
        device: The device; its power limit and peak rates count.
        busy_share: Part of the time in which a kernel runs, 0 to 1.
        flops_per_s: Arithmetic rate over the busy time, as a rate of FP32 arithmetic: tensor-core work counts by the
            share of the tensor-core peak that it uses.
        bytes_per_s: Memory traffic over the busy time.

    Shapes:
        Arrays and result: [B].
    """
    arithmetic = np.minimum(flops_per_s / (device.peak_tflops["fp32"] * TERA), 1.0)
    traffic = np.minimum(bytes_per_s / (device.bandwidth_gb_s * GIGA), 1.0)
    running = np.minimum(model.base + model.compute * arithmetic + model.memory * traffic, 1.0)
    share = model.idle + busy_share * np.maximum(running - model.idle, 0.0)
    result: FloatArray = device.board_power_w * share
    return result
