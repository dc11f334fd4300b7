"""Intervals by hand; what an answer rests on is tested with whole predictions in test_physics.py."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dippm.costs.energy import KernelWork, PowerModel
from dippm.costs.latency import LatencyBreakdown
from dippm.costs.software import DEFAULT_SOFTWARE
from dippm.devices import find_device
from dippm.predictors.board_load import BoardLoad
from dippm.predictors.calibration import Calibration
from dippm.predictors.physics_doubt import memory_interval, time_and_energy_intervals

_DEVICE = find_device("A100")
# A board that draws nothing but the energy of what it moves, and one that draws the same all the time.
_MOVING = PowerModel(idle=0.0, running_pj=0.0, flop_pj=0.0, tensor_pj=0.0, byte_pj=100.0)
_IDLE = replace(_MOVING, idle=0.25, byte_pj=0.0)
_IDLE_W = 0.25 * _DEVICE.board_power_w


def load_of(traffic_bytes: float = 0.0, *, share: float = 1.0) -> BoardLoad:
    """One kernel for all of the time, or a share of it."""
    nothing = np.zeros((1, 1))
    work = KernelWork(
        runs=np.ones(1),
        plain_flops=nothing,
        tensor_flops=nothing,
        traffic_bytes=np.array([[traffic_bytes]]),
        results=nothing,
    )
    return BoardLoad(kernel_share=np.full((1, 1), share), work=work)


def breakdown(latency_ms: float, *, fast_host_ms: float, slow_host_ms: float) -> LatencyBreakdown:
    return LatencyBreakdown(
        busy_ms=np.array([[latency_ms]]), run=lambda: np.array([[[latency_ms]], [[fast_host_ms]], [[slow_host_ms]]])
    )


def test_doubts_of_device_host_and_power_are_added_as_independent_ones() -> None:
    time = breakdown(10.0, fast_host_ms=10.0 / math.exp(0.4), slow_host_ms=10.0 * math.exp(1.2))
    # Energy goes with the time.
    energy_j = np.array([_IDLE_W * 0.01])
    (low, high), (low_j, high_j) = time_and_energy_intervals(
        time, energy_j, load_of(share=0.0), _IDLE, _DEVICE, spread=np.array([0.3]), power_spread=0.1
    )
    assert low == pytest.approx(10.0 / math.exp(0.5))
    assert high == pytest.approx(10.0 * math.exp(math.hypot(0.3, 1.2)))
    assert low_j == pytest.approx(energy_j / math.exp(math.hypot(0.3, 0.4, 0.1)))
    assert high_j == pytest.approx(energy_j * math.exp(math.hypot(0.3, 1.2, 0.1)))


def test_a_host_that_is_fast_enough_leaves_the_doubt_of_the_device() -> None:
    def low_ms(fast_host_ms: float, busy_ms: float) -> float:
        run = lambda: np.array([[[10.0]], [[fast_host_ms]], [[20.0]]])  # noqa: E731
        time = LatencyBreakdown(busy_ms=np.array([[busy_ms]]), run=run)
        (low, _), _ = time_and_energy_intervals(
            time,
            np.ones(1),
            load_of(share=busy_ms / 10.0),
            _IDLE,
            _DEVICE,
            spread=np.array([0.1]),
            power_spread=0.0,
        )
        return float(low[0])

    # It saves its most when it is 1.2 times as fast, which the device needs all of.
    used = math.log(1.2) / math.log(2.0)
    assert low_ms(10.0 / 1.2, 10.0 / 1.2) == pytest.approx(10.0 / 1.2 * math.exp(-0.1 * math.sqrt(1 - used**2)))
    # One that no device stops saves all that it may, and the device's doubt is one of two.
    assert low_ms(5.0, 1.0) == pytest.approx(10.0 * math.exp(-math.hypot(math.log(2.0), 0.1)))
    # Nor does it leave more than one without a host.
    assert low_ms(10.0, 10.0) == pytest.approx(10.0 * math.exp(-0.1))


def test_energy_of_the_work_alone_does_not_depend_on_the_time() -> None:
    time = breakdown(10.0, fast_host_ms=5.0, slow_host_ms=30.0)
    # A third of what the board moves at its peak.
    load = load_of(_DEVICE.bandwidth_gb_s * 1e9 * 0.01 / 3.0)
    energy_j = load.energy_j(_MOVING, _DEVICE, time.latency_ms)
    _, (low_j, high_j) = time_and_energy_intervals(
        time, energy_j, load, _MOVING, _DEVICE, spread=np.array([0.3]), power_spread=0.1
    )
    assert low_j == pytest.approx(energy_j / math.exp(0.1))
    assert high_j == pytest.approx(energy_j * math.exp(0.1))


def test_a_board_that_waits_for_its_host_draws_idle_power_for_that() -> None:
    time = breakdown(10.0, fast_host_ms=10.0, slow_host_ms=30.0)
    energy_j = np.array([_IDLE_W * 0.01 + 2.0])
    _, (low_j, high_j) = time_and_energy_intervals(
        time, energy_j, load_of(), _IDLE, _DEVICE, spread=np.zeros(1), power_spread=0.0
    )
    assert low_j == pytest.approx(energy_j)
    assert high_j == pytest.approx(energy_j + _IDLE_W * 0.02)


def test_energy_is_no_less_certain_than_time_and_power() -> None:
    # Kernels of some microseconds: what they start with is a part that no shorter time shrinks.
    time, running = breakdown(0.006, fast_host_ms=0.006, slow_host_ms=0.006), replace(_MOVING, running_pj=50.0)
    load = load_of(_DEVICE.bandwidth_gb_s * 1e9 * 6e-6)
    energy_j = load.energy_j(running, _DEVICE, time.latency_ms)
    assert load.energy_j(running, _DEVICE, time.latency_ms / 1.3) < energy_j / 1.3
    _, (low_j, high_j) = time_and_energy_intervals(
        time, energy_j, load, running, _DEVICE, spread=np.array([0.3]), power_spread=0.1
    )
    assert energy_j / math.exp(math.hypot(0.3, 0.1)) <= low_j * (1.0 + 1e-9)
    assert high_j <= energy_j * math.exp(math.hypot(0.3, 0.1)) * (1.0 + 1e-9)


@pytest.mark.parametrize("energy_j", [0.9, 10.0])
def test_a_board_draws_no_more_than_its_limit(energy_j: float) -> None:
    time = breakdown(10.0, fast_host_ms=10.0, slow_host_ms=10.0)
    (_, high_ms), (low_j, high_j) = time_and_energy_intervals(
        time, np.array([energy_j]), load_of(), _IDLE, _DEVICE, spread=np.array([0.1]), power_spread=5.0
    )
    # At its limit for as long as it may take; and never less than the answer itself.
    assert high_j == pytest.approx(max(_DEVICE.board_power_w * float(high_ms[0]) / 1e3, energy_j))
    assert low_j < energy_j <= high_j


def test_no_call_is_faster_than_what_it_moves_comes_from_memory() -> None:
    def low_ms(least_ms: float) -> float:
        time = replace(breakdown(10.0, fast_host_ms=10.0, slow_host_ms=10.0), least_ms=np.array([least_ms]))
        (low, _), _ = time_and_energy_intervals(
            time, np.ones(1), load_of(), _IDLE, _DEVICE, spread=np.array([0.5]), power_spread=0.1
        )
        return float(low[0])

    assert low_ms(0.0) == low_ms(5.0) == pytest.approx(10.0 / math.exp(0.5))
    assert low_ms(8.0) == pytest.approx(8.0)
    # The answer itself is never outside.
    assert low_ms(16.0) == 10.0


def test_weights_are_certain_and_the_context_is_never_less_than_half() -> None:
    calibration = Calibration.read()
    below_mb, above_mb = calibration.context_margins_mb(_DEVICE, DEFAULT_SOFTWARE)

    def ends(context: float, weights: float, activations: float) -> tuple[float, float]:
        low, high = memory_interval(
            np.array([context + weights + activations]),
            context_mb=np.array([context]),
            certain_mb=np.array([weights]),
            margins_mb=(below_mb, above_mb),
            spreads=(calibration.memory_spread_low, calibration.memory_spread),
        )
        return float(low[0]), float(high[0])

    assert ends(1000.0, 5000.0, 0.0) == pytest.approx((6000.0 - below_mb, 6000.0 + above_mb))
    assert ends(1.5 * below_mb, 5000.0, 0.0)[0] == pytest.approx(5000.0 + 0.75 * below_mb)
    low, high = ends(1000.0, 0.0, 3000.0)
    assert low == pytest.approx(1000.0 - below_mb + 3000.0 * math.exp(-calibration.memory_spread_low))
    assert high == pytest.approx(1000.0 + above_mb + 3000.0 * math.exp(calibration.memory_spread))


def test_what_the_time_leaves_out_opens_the_upper_ends_alone() -> None:
    time = breakdown(10.0, fast_host_ms=10.0, slow_host_ms=10.0)
    plain, opened = (
        time_and_energy_intervals(
            time,
            np.array([0.01]),
            load_of(),
            _IDLE,
            _DEVICE,
            spread=np.array([0.3]),
            power_spread=0.1,
            most_times=most_times,
        )
        for most_times in (1.0, 50.0)
    )
    for (low, high), (opened_low, opened_high) in zip(plain, opened, strict=True):
        assert opened_low == low
        assert opened_high == pytest.approx(50.0 * high)
