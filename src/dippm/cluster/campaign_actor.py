"""The process on a machine of the cluster that measures on one of its devices."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

from dippm.datasets.campaign.fleet import NamedMeasurer
from dippm.errors import DippmError
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement
from dippm.measuring.model_source import ModelSource

__all__ = ["Description", "DeviceActor", "Placed", "Refusal", "Row"]

_THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """Where the process stands.

    Args:
        gpu: The GPU that Ray gave it, as Ray names the GPUs of that machine; ``""`` for none.
    """

    gpu: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """Who answers.

    Args:
        device_name: The device as it names itself.
        version: Version of dippm there.
    """

    device_name: str
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One configuration, measured.

    Args:
        measurement: What came out.
        busy_s: Time that the device spent on it, s.
    """

    measurement: Measurement
    busy_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """The device is not to be had.

    Args:
        message: Why.
    """

    message: str


class DeviceActor:
    """Runs the guarded process that measures; its methods are called from other machines.

    Args:
        make: Makes what measures.
        threads: ``OMP_NUM_THREADS`` for it; None for none.
    """

    def __init__(self, make: Callable[[], NamedMeasurer], *, threads: str | None) -> None:
        # Ray sets it to the cores that it counts for the actor, which would slow a processor that is measured.
        if threads is None:
            os.environ.pop(_THREADS, None)
        else:
            os.environ[_THREADS] = threads
        self._make = make
        self._measurer: NamedMeasurer | None = None

    def place(self) -> Placed:
        """Say which GPU this process was given; measuring's own process is not started."""
        import ray

        return Placed(gpu=",".join(ray.get_runtime_context().get_accelerator_ids()["GPU"]))

    def describe(self) -> Description | Refusal:
        """Start measuring's own process, and say on what."""
        try:
            return Description(device_name=self._running().device_name, version=version("dippm"))
        except DippmError as exc:
            # As a value: an exception of ours would have to be made again there by its class.
            return Refusal(message=str(exc))

    def measure(self, source: ModelSource, configuration: Configuration) -> Row | Refusal:
        """Measure one row."""
        try:
            measurer = self._running()
            before_s = measurer.busy_s
            (measurement,) = measurer.measure(source, [configuration])
        except DippmError as exc:
            return Refusal(message=str(exc))
        return Row(measurement=measurement, busy_s=measurer.busy_s - before_s)

    def pulse(self) -> None:
        """Show that this process lives, while another of its threads measures."""

    def _running(self) -> NamedMeasurer:
        if self._measurer is None:
            self._measurer = self._make()
        return self._measurer
