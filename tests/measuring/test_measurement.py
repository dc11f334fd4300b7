from __future__ import annotations

import pytest

from dippm.measuring.measurement import Measurement, Outcome


@pytest.mark.parametrize(
    ("outcome", "fits"),
    [
        (Outcome.OK, True),
        (Outcome.NOT_FINITE, True),  # it ran
        (Outcome.OUT_OF_MEMORY, False),
        (Outcome.TIMED_OUT, None),
        (Outcome.FAILED, None),
    ],
)
def test_whether_it_fitted(outcome: Outcome, fits: bool | None) -> None:
    assert Measurement(outcome=outcome, device="H200", measured_at="2026-01-01T00:00:00+00:00").fits is fits


@pytest.mark.parametrize(
    ("latency_ms", "is_timed"),
    [(1.5, True), (None, False), (0.0, False), (-1.0, False), (float("nan"), False), (float("inf"), False)],
)
def test_whether_it_tells_a_time(latency_ms: float | None, is_timed: bool) -> None:
    measurement = Measurement(
        outcome=Outcome.OK, device="H200", measured_at="2026-01-01T00:00:00+00:00", latency_ms=latency_ms
    )
    assert measurement.is_timed is is_timed


def test_what_was_not_measured_is_none_and_not_zero() -> None:
    measurement = Measurement(outcome=Outcome.FAILED, device="H200", measured_at="2026-01-01T00:00:00+00:00")
    figures = (
        "latency_ms", "latency_std_ms", "device_time_ms", "energy_j", "idle_power_w", "memory_mb", "context_mb",
        "allocated_peak_mb", "reserved_peak_mb",
    )  # fmt: skip
    assert {name: getattr(measurement, name) for name in figures} == dict.fromkeys(figures)
    assert measurement.state.sm_clock_mhz is None
