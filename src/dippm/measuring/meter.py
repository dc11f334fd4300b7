"""What a device tells about a run: the one thing that the measuring protocol knows of devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dippm.measuring.measurement import DeviceState, SoftwareStack

__all__ = ["LONGEST_TICK_S", "CallTime", "EnergyCounter", "MemoryReading", "Meter", "open_meter"]

# An energy counter moves every 20 to 100 ms; one that has stood still for so long stands still for good, s.
LONGEST_TICK_S = 0.15


@dataclass(frozen=True, kw_only=True, slots=True)
class CallTime:
    """Time of one call.

    Args:
        wall_s: Wall time until the device had finished, s.
        device_s: The same by the device's own clock, s; None where it has none.
    """

    wall_s: float
    device_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryReading:
    """Memory of the process; see :class:`~dippm.measuring.measurement.Measurement` for the fields. MiB.

    ``context_mb`` is None where only :meth:`Meter.base_memory_mb`, read before the model, can tell it.
    """

    memory_mb: float | None = None
    memory_source: str | None = None
    context_mb: float | None = None
    allocated_peak_mb: float | None = None
    reserved_peak_mb: float | None = None


class EnergyCounter(Protocol):
    """Energy that only grows; it may move in ticks of up to a tenth of a second."""

    @property
    def source(self) -> str:
        """Its name in a measurement's ``energy_source``."""
        ...

    def start(self) -> None:
        """Begin a window; the counter may stand still outside of one."""
        ...

    def read_j(self) -> float | None:
        """Energy drawn since some fixed moment, J; None where the device did not answer."""
        ...

    def stop(self) -> None:
        """End the window."""
        ...


class Meter(Protocol):
    """A device under measurement, in the process that runs the model on it."""

    @property
    def device(self) -> str:
        """PyTorch's name of the device, such as ``"cuda:0"``."""
        ...

    @property
    def device_name(self) -> str:
        """The device as it names itself."""
        ...

    @property
    def idle_power_w(self) -> float | None:
        """Mean power before any model ran in this process, W."""
        ...

    @property
    def energy(self) -> EnergyCounter | None:
        """The best counter that the device has, or None."""
        ...

    def synchronise(self) -> None:
        """Wait until the device has finished all that it was given."""
        ...

    def time_call(self, call: Callable[[], object]) -> tuple[object, CallTime]:
        """Run a call to its end on the device; return what it returned and its time."""
        ...

    def is_usable(self) -> bool:
        """Whether the device still takes work from this process; asked after a failure."""
        ...

    def release_memory(self) -> None:
        """Give back all memory that is held and not used."""
        ...

    def base_memory_mb(self) -> float | None:
        """Memory that the process holds now beside tensors; called before a model is built. MiB."""
        ...

    def reset_peaks(self) -> None:
        """Forget the peaks of memory seen so far."""
        ...

    def read_memory(self) -> MemoryReading:
        """Peaks since the last reset."""
        ...

    def state(self) -> DeviceState:
        """Clocks, temperature and power limit now."""
        ...

    def software(self, framework: str) -> SoftwareStack:
        """Versions, with the given framework."""
        ...


def open_meter(device: str) -> Meter:
    """Take a device under measurement.

    Args:
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:INDEX"``, as PyTorch counts devices.

    Raises:
        UnsupportedError: ``device.unavailable`` where this machine has no such device, it is of another kind, or it
            cannot be used.
        MissingExtraError: where PyTorch is not installed.
    """
    from dippm.measuring.device_names import parse_device, starting_cuda

    kind, index = parse_device(device)
    if kind == "cpu":
        from dippm.measuring.cpu_meter import CpuMeter

        return CpuMeter()
    from dippm.measuring.cuda_meter import CudaMeter

    with starting_cuda(device):
        return CudaMeter(index)
