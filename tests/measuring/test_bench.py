"""Real measurements on the CPU of this machine, in this process."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from dippm.costs.conditions import Conditions
from dippm.errors import UnsupportedError
from dippm.measuring.bench import Bench
from dippm.measuring.configuration import Configuration, Engine
from dippm.measuring.measure import describe_device, measure_once
from dippm.measuring.measurement import Outcome
from dippm.measuring.protocol import Plan

TRAINING = Conditions.parse(mode="training", optimizer="adam")


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


def test_one_model_serves_all_configurations(models: Any) -> None:
    bench = Bench("cpu", Plan(warmup_runs=2, timed_runs=3))
    asked = [Configuration(batch=1), Configuration(batch=2, conditions=TRAINING), Configuration(batch=3)]
    results = list(bench.measure(models.Example(), asked))
    assert [result.outcome for result in results] == [Outcome.OK] * 3
    assert [result.build_s > 0 for result in results] == [True, False, False]
    assert 0 < bench.busy_s <= sum(result.duration_s for result in results)


def test_a_model_in_another_format_is_built_anew(models: Any) -> None:
    bench = Bench("cpu", Plan(warmup_runs=2, timed_runs=3))
    asked = [Configuration(batch=1, conditions=Conditions.parse(precision="bf16")), Configuration(batch=1)]
    results = list(bench.measure(models.Example(), asked))
    assert [result.outcome for result in results] == [Outcome.OK] * 2
    assert results[1].build_s > 0


@pytest.mark.parametrize(
    ("kind", "outcome", "message"),
    [
        ("Undefined", Outcome.NOT_FINITE, "NaN"),
        ("Wrong", Outcome.FAILED, "ValueError: no such thing"),
    ],
)
@pytest.mark.parametrize("conditions", [Conditions(), TRAINING])
def test_bad_ends(kind: str, outcome: Outcome, message: str, conditions: Conditions, models: Any) -> None:
    bench = Bench("cpu", Plan(warmup_runs=2, timed_runs=3))
    bad, good = Configuration(batch=2, conditions=conditions), Configuration(batch=2)
    (measured,) = bench.measure(models.Example(kind=kind), [bad])
    assert measured.outcome is outcome
    assert message in measured.message
    assert "\n" not in measured.message
    assert (measured.latency_ms is not None) is (outcome is Outcome.NOT_FINITE)
    (after,) = bench.measure(models.Example(), [good])
    assert after.outcome is Outcome.OK


def test_onnxruntime_runs_the_same_model(models: Any) -> None:
    pytest.importorskip("onnxscript")
    bench = Bench("cpu", Plan(warmup_runs=2, timed_runs=3))
    (measured,) = bench.measure(models.Example(), [Configuration(batch=2, engine=Engine.ONNXRUNTIME)])
    assert measured.outcome is Outcome.OK, measured.message
    assert measured.software.framework.startswith("onnxruntime ")


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cuda:99"])
def test_devices_that_are_not_there(device: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        describe_device(device)
    assert caught.value.code == "device.unavailable"
