"""Energy from sampled power."""

from __future__ import annotations

import time

import pytest

from dippm.measuring.sampled_energy import SampledEnergy


def test_power_times_time() -> None:
    counter = SampledEnergy(lambda: 50.0, source="sampled")
    counter.start()
    start = time.perf_counter()
    time.sleep(0.3)
    energy, elapsed = counter.read_j(), time.perf_counter() - start
    counter.stop()
    assert energy is not None
    assert energy == pytest.approx(50.0 * elapsed, rel=0.3)
    time.sleep(0.05)
    stopped = counter.read_j()
    time.sleep(0.05)
    assert counter.read_j() == stopped


def test_a_window_begins_at_zero() -> None:
    counter = SampledEnergy(lambda: 1000.0, source="sampled")
    counter.start()
    time.sleep(0.1)
    counter.stop()
    counter.start()
    first = counter.read_j()
    counter.stop()
    assert first is not None
    assert first < 50


def test_a_failing_sample_makes_it_unknown() -> None:
    powers = iter([10.0, None])
    counter = SampledEnergy(lambda: next(powers), source="sampled")
    counter.start()
    time.sleep(0.1)
    assert counter.read_j() is None
    counter.stop()
