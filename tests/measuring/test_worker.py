"""A measuring process that hangs, crashes, runs out of memory, and loses its parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
if os.name != "posix":
    pytest.skip("the worker needs POSIX", allow_module_level=True)

from dippm.costs.conditions import Conditions
from dippm.errors import UnsupportedError, UsageError
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Outcome
from dippm.measuring.protocol import Plan
from dippm.measuring.worker import Worker

QUICK = Plan(warmup_runs=2, timed_runs=3)
ONE = [Configuration(batch=1)]


@pytest.mark.slow
def test_all_that_can_go_wrong_in_one_process_after_another(models: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """One worker, so that each case also shows that the one before left nothing behind."""
    with Worker("cpu", configuration_limit_s=3, plan=QUICK) as worker:
        expected = [
            ("Tiny", Outcome.OK, ""),
            ("Hanging", Outcome.TIMED_OUT, "more than 3 s"),
            ("Slow", Outcome.TIMED_OUT, "One call took 0.9"),
            ("Crashing", Outcome.FAILED, "SIGABRT: Fatal Python error: Aborted"),
            ("Killed", Outcome.OUT_OF_MEMORY, "killed the measuring process"),
            ("Undefined", Outcome.NOT_FINITE, "NaN"),
            ("Wrong", Outcome.FAILED, "no such thing"),
            ("Talking", Outcome.OK, ""),
        ]
        for kind, outcome, message in expected:
            (measured,) = worker.measure(models.Example(kind=kind), ONE)
            assert measured.outcome is outcome, f"{kind}: {measured.message}"
            assert message in measured.message
            assert measured.device == worker.device_name
            assert measured.measured_at
        assert worker.busy_s > 0
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_configurations_after_a_crash_are_measured(models: Any) -> None:
    with Worker("cpu", configuration_limit_s=60, plan=QUICK) as worker:
        asked = [Configuration(batch=batch) for batch in (1, 8, 2)]
        results = list(worker.measure(models.Example(kind="CrashingAtEight"), asked))
    assert [result.outcome for result in results] == [Outcome.OK, Outcome.FAILED, Outcome.OK]
    assert [result.build_s > 0 for result in results] == [True, False, True]


def test_running_out_of_memory_is_a_result(models: Any) -> None:
    with Worker("cpu", configuration_limit_s=60, plan=QUICK, memory_limit_mb=400) as worker:
        asked = [Configuration(batch=1), Configuration(batch=64), Configuration(batch=2)]
        results = list(worker.measure(models.Example(kind="Hungry"), asked))
        process = worker._running().process.pid
        trained = Configuration(batch=64, conditions=Conditions.parse(mode="training", optimizer="sgd"))
        assert next(worker.measure(models.Example(kind="Hungry"), [trained])).outcome is Outcome.OUT_OF_MEMORY
        assert worker._running().process.pid == process
    assert [result.outcome for result in results] == [Outcome.OK, Outcome.OUT_OF_MEMORY, Outcome.OK]
    assert [result.fits for result in results] == [True, False, True]
    first, _, last = (result.memory_mb for result in results)
    if first is not None and last is not None:
        assert last - first == pytest.approx(64, abs=24)


def test_measurements_come_one_by_one_and_may_be_left(models: Any) -> None:
    with Worker("cpu", configuration_limit_s=60, plan=QUICK) as worker:
        first = worker.measure(models.Example(), [Configuration(batch=batch) for batch in (1, 2, 3)])
        assert next(first).outcome is Outcome.OK
        first.close()  # type: ignore[attr-defined]
        (measured,) = worker.measure(models.Example(kind="Wrong"), ONE)
        assert measured.outcome is Outcome.FAILED


def test_sources_that_cannot_travel(models: Any) -> None:
    class Local(models.Example):  # type: ignore[misc]
        pass

    with Worker("cpu", configuration_limit_s=60, plan=QUICK) as worker:
        with pytest.raises(UsageError) as caught:
            list(worker.measure(Local(), ONE))
        assert caught.value.code == "source.not_picklable"
        results = list(worker.measure(models.Unreadable(), ONE * 2))
        assert [result.outcome for result in results] == [Outcome.FAILED] * 2
        assert "another process" in results[0].message


@pytest.mark.parametrize("limits", [{"configuration_limit_s": 0}, {"configuration_limit_s": 1, "memory_limit_mb": -1}])
def test_limits_must_be_positive(limits: dict[str, float]) -> None:
    with pytest.raises(UsageError) as caught:
        Worker("cpu", **limits)
    assert caught.value.code == "limit.invalid"


def test_a_process_that_cannot_be_ended_is_left(
    models: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Worker("cpu", configuration_limit_s=60, plan=QUICK) as worker:
        process = worker._running().process
        end = process.wait
        asked: list[float | None] = []

        def never(timeout: float | None = None) -> int:
            asked.append(timeout)
            raise subprocess.TimeoutExpired("measuring", timeout or 0)

        monkeypatch.setattr(process, "wait", never)
        worker._kill()
        end()
    assert worker._child is None
    assert asked
    assert None not in asked
    assert "does not end" in caplog.text


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(UnsupportedError) as caught:
        Worker("cuda:99", configuration_limit_s=1)
    assert caught.value.code == "device.unavailable"


PARENT = """
import sys
import json
sys.path[:] = json.loads(sys.argv[1])
import measured_models
from dippm.measuring.configuration import Configuration
from dippm.measuring.worker import Worker
with Worker("cpu", configuration_limit_s=500) as worker:
    worker.device_name
    print(worker._running().process.pid, flush=True)
    list(worker.measure(measured_models.Example(kind=sys.argv[2]), [Configuration(batch=1)]))
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_no_process_outlives_its_parent(
    models: Any, is_running: Callable[[int], bool], assert_gone: Callable[[Iterable[int]], None]
) -> None:
    command = [sys.executable, "-c", PARENT, json.dumps(sys.path), "Hanging"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(0.5)  # it is at the model, which hangs
        assert is_running(child)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert_gone([child])
