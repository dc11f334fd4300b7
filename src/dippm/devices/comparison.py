"""Which of two devices is the better one, as far as data sheets tell."""

from __future__ import annotations

from dippm.devices.spec import DeviceSpec

__all__ = ["is_better"]


def is_better(device: DeviceSpec, other: DeviceSpec) -> bool:
    """Whether a device is at least as good as another in every figure that time depends on, and better in one.

    How much memory there is decides what fits, not how fast it runs. A format that a device has no unit for counts as a
    rate of 0.

    Args:
        device: The device.
        other: What it is compared with.
    """
    pairs = list(zip(_figures(device), _figures(other), strict=True))
    formats = {*device.peak_tflops, *other.peak_tflops}
    pairs += [(device.peak_tflops.get(name, 0.0), other.peak_tflops.get(name, 0.0)) for name in formats]
    return all(own >= others for own, others in pairs) and any(own > others for own, others in pairs)


def _figures(device: DeviceSpec) -> tuple[float, ...]:
    return (
        device.sm_count,
        device.base_clock_mhz,
        device.boost_clock_mhz,
        device.bandwidth_gb_s,
        device.l2_mb,
        device.board_power_w,
    )
