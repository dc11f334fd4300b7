"""One call from a model to its measurement."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from dippm.measuring.configuration import Configuration  # noqa: E402
from dippm.measuring.measure import describe_device, measure_once  # noqa: E402
from dippm.measuring.measurement import Outcome  # noqa: E402


def test_one_call_measures(models: Any) -> None:
    measured = measure_once(models.Example(), Configuration(batch=4))
    assert measured.outcome is Outcome.OK
    assert measured.device == describe_device("cpu")
    assert (measured.warmup_runs, measured.timed_runs) == (5, 30)
    assert measured.latency_ms is not None
    assert measured.latency_std_ms is not None
    assert measured.latency_median_ms is not None
    assert measured.latency_min_ms is not None
    assert measured.latency_max_ms is not None
    assert 0 < measured.latency_min_ms <= measured.latency_median_ms <= measured.latency_max_ms < 1000
    assert measured.latency_min_ms <= measured.latency_ms <= measured.latency_max_ms
    assert measured.duration_s > 30 * measured.latency_ms / 1000
    assert measured.build_s > 0
    assert measured.device_time_ms is None
    assert measured.software.framework.startswith("torch ")
    assert measured.software.threads >= 1
    assert measured.software.cuda == ""
    assert measured.measured_at.endswith("+00:00")
    assert measured.fits is True
