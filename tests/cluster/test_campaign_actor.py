"""The process on a machine that measures there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest

from dippm.cluster.campaign_actor import Description, DeviceActor, Placed, Refusal, Row
from dippm.errors import UnsupportedError
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome


class Device:
    """Measures in no time, and counts."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.busy_s = 10.0

    @property
    def device_name(self) -> str:
        return f"Device of {os.environ.get('OMP_NUM_THREADS')} threads"

    def measure(self, source: Any, configurations: Sequence[Configuration]) -> Iterator[Measurement]:
        for configuration in configurations:
            self.busy_s += 0.25
            yield Measurement(outcome=Outcome.OK, device=source, measured_at="", latency_ms=float(configuration.batch))


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    # As Ray leaves it in a process of one core.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_it_measures_on_one_device_made_once() -> None:
    Device.made = 0
    actor = DeviceActor(Device, threads=None)
    actor.pulse()
    assert Device.made == 0
    assert actor.describe() == Description(device_name="Device of None threads", version=version("dippm"))
    source: Any = "source"
    row = actor.measure(source, Configuration(batch=3))
    assert isinstance(row, Row)
    assert (row.measurement.latency_ms, row.measurement.device, row.busy_s) == (3.0, "source", 0.25)
    assert Device.made == 1


@pytest.mark.parametrize(("gpus", "gpu"), [(["3"], "3"), ([], "")])
def test_it_says_which_gpu_ray_gave_it(gpus: list[str], gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    context = SimpleNamespace(get_accelerator_ids=lambda: {"GPU": gpus, "TPU": []})
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    assert DeviceActor(lambda: pytest.fail("made"), threads=None).place() == Placed(gpu=gpu)


def test_its_threads_are_those_of_the_command() -> None:
    found = DeviceActor(Device, threads="5").describe()
    assert isinstance(found, Description)
    assert found.device_name == "Device of 5 threads"


def test_a_device_that_is_not_to_be_had_is_a_refusal() -> None:
    def refuse() -> Device:
        raise UnsupportedError("There is no such device.", code="device.unavailable")

    actor = DeviceActor(refuse, threads=None)
    source: Any = "source"
    for answer in (actor.describe(), actor.measure(source, Configuration(batch=1))):
        assert answer == Refusal(message="There is no such device.")
