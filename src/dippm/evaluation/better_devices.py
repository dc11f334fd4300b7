"""Devices that are better than another in one figure of the data sheet or in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from dippm.devices import DeviceSpec, is_better

__all__ = ["Improvement", "dominating_pairs", "improve"]

_MORE = 1.5
_FASTER_CLOCK = 1.25


class Improvement(StrEnum):
    """What is better: a figure, with those that follow from it by arithmetic."""

    SMS = "SMs"
    CLOCKS = "clocks"
    TENSOR_CORES = "tensor peaks"
    BANDWIDTH = "bandwidth"
    L2 = "L2 cache"
    MEMORY = "memory"
    POWER = "board power"
    ALL = "all figures"


def improve(device: DeviceSpec, what: Improvement) -> DeviceSpec:
    """The same device with one figure better, under its own name, so that the same predictor answers.

    Half as many again of each figure, a quarter more of the clocks. More SMs and faster clocks raise every peak rate
    with them, or each SM would be slower than before.

    Args:
        device: The device.
        what: What is better; all figures at once by :attr:`Improvement.ALL`.
    """
    is_all = what is Improvement.ALL
    result = device
    if is_all or what is Improvement.SMS:
        sms = round(_MORE * device.sm_count)
        result = _with_peaks(replace(result, sm_count=sms), sms / device.sm_count)
    if is_all or what is Improvement.CLOCKS:
        result = replace(
            result,
            base_clock_mhz=_FASTER_CLOCK * device.base_clock_mhz,
            boost_clock_mhz=_FASTER_CLOCK * device.boost_clock_mhz,
        )
        result = _with_peaks(result, _FASTER_CLOCK)
    if what is Improvement.TENSOR_CORES:
        peaks = {name: rate * (_MORE if "tensor" in name else 1.0) for name, rate in device.peak_tflops.items()}
        result = replace(result, peak_tflops=peaks)
    if is_all or what is Improvement.BANDWIDTH:
        result = replace(result, bandwidth_gb_s=_MORE * device.bandwidth_gb_s)
    if is_all or what is Improvement.L2:
        result = replace(result, l2_mb=_MORE * device.l2_mb)
    if is_all or what is Improvement.MEMORY:
        usable = device.usable_memory_mb
        result = replace(
            result,
            memory_mb=_MORE * device.memory_mb,
            usable_memory_mb=None if usable is None else _MORE * usable,
        )
    if is_all or what is Improvement.POWER:
        # Lanes and clocks that are half as many again and a quarter faster need as much more power.
        result = replace(result, board_power_w=device.board_power_w * (_MORE * _FASTER_CLOCK if is_all else _MORE))
    return result


def dominating_pairs(devices: Sequence[DeviceSpec]) -> list[tuple[DeviceSpec, DeviceSpec]]:
    """Pairs of a device and one that is at least as good in every figure that time depends on, and better in one.

    How much memory there is decides what fits, not how fast it runs.
    """
    return [(worse, better) for worse in devices for better in devices if is_better(better, worse)]


def _with_peaks(device: DeviceSpec, factor: float) -> DeviceSpec:
    return replace(device, peak_tflops={name: factor * rate for name, rate in device.peak_tflops.items()})
