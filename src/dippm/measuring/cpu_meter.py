"""The CPU as a device: wall clock, resident memory, RAPL."""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

from dippm.measuring.device_names import cpu_name
from dippm.measuring.measurement import DeviceState, SoftwareStack
from dippm.measuring.meter import CallTime, EnergyCounter, MemoryReading
from dippm.measuring.process_memory import ResidentMemory, describe_allocator, trim_heap
from dippm.measuring.rapl import RaplCounter

__all__ = ["CpuMeter", "host_software"]

_IDLE_SECONDS = 0.5
# What Linux calls the sensors of Intel's, AMD's and Arm's processors.
_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


class CpuMeter:
    """The CPU of this machine.

    Memory is that of the whole process: interpreter and libraries are its ``context_mb``.

    Args:
        rapl: Energy counter; None to take the machine's own.
        memory: Resident memory of the process.
    """

    device = "cpu"

    def __init__(self, rapl: RaplCounter | None = None, memory: ResidentMemory | None = None) -> None:
        rapl = rapl or RaplCounter()
        self._rapl = rapl if rapl.is_available else None
        self._memory = memory or ResidentMemory()
        self.device_name = cpu_name()
        self.idle_power_w = None if self._rapl is None else _mean_power_w(self._rapl)

    @property
    def energy(self) -> EnergyCounter | None:
        """RAPL, where it can be read."""
        return self._rapl

    def synchronise(self) -> None:
        """Nothing to wait for: a call on the CPU ends when it is done."""

    def time_call(self, call: Callable[[], object]) -> tuple[object, CallTime]:
        """Run a call; return what it returned and its wall time."""
        start = time.perf_counter()
        output = call()
        return output, CallTime(wall_s=time.perf_counter() - start)

    def is_usable(self) -> bool:
        """Always: what ends the CPU's use ends the process."""
        return True

    def release_memory(self) -> None:
        """Collect garbage and give the heap's free pages back."""
        gc.collect()
        trim_heap()

    def base_memory_mb(self) -> float | None:
        """Resident memory now, MiB."""
        return self._memory.current_mb()

    def reset_peaks(self) -> None:
        """Begin a new peak of resident memory."""
        self._memory.reset_peak()

    def read_memory(self) -> MemoryReading:
        """Peak of resident memory since the last reset."""
        peak = self._memory.peak_mb()
        return MemoryReading(memory_mb=peak, memory_source=None if peak is None else "rss")

    def state(self) -> DeviceState:
        """Mean clock of the cores and temperature, where psutil knows them."""
        if find_spec("psutil") is None:
            return DeviceState()
        import psutil

        # Both are missing on systems without such sensors, and virtual machines have empty ones.
        frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
        sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
        temperatures = [entry.current for name in _CPU_SENSORS for entry in sensors.get(name, ())]
        return DeviceState(
            sm_clock_mhz=frequency.current if frequency is not None and frequency.current > 0 else None,
            temperature_c=max(temperatures) if temperatures else None,
        )

    def software(self, framework: str) -> SoftwareStack:
        """Versions, with the given framework."""
        software = host_software(framework)
        allocator = describe_allocator()
        return replace(software, platform=f"{software.platform}, {allocator}") if allocator else software


def host_software(framework: str, *, driver: str = "", cuda: str = "", cudnn: str = "") -> SoftwareStack:
    """Versions on this host, with those of the device that are given."""
    import torch

    return SoftwareStack(
        driver=driver,
        cuda=cuda,
        cudnn=cudnn,
        framework=framework,
        python=platform.python_version(),
        platform=f"{platform.system()}-{platform.release()}-{platform.machine()}",
        host_cpu=cpu_name(),
        threads=torch.get_num_threads(),
    )


def _mean_power_w(counter: RaplCounter) -> float | None:
    before, start = counter.read_j(), time.perf_counter()
    time.sleep(_IDLE_SECONDS)
    after, elapsed = counter.read_j(), time.perf_counter() - start
    return None if before is None or after is None else (after - before) / elapsed
