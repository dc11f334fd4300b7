"""What a measurement holds: the figures, how sure they are, and the state in which they were taken."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["DeviceState", "Measurement", "Outcome", "SoftwareStack"]


class Outcome(StrEnum):
    """How a measurement ended; everything but ``OK`` is a result too, and is kept.

    ``NOT_FINITE`` has all figures: the model ran, and its output holds NaN or infinities.
    """

    OK = "ok"
    OUT_OF_MEMORY = "out-of-memory"
    TIMED_OUT = "timed-out"
    NOT_FINITE = "not-finite"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceState:
    """State of the device right after the timed runs; None where the device does not say.

    Args:
        sm_clock_mhz: Clock of the multiprocessors, or of the CPU's cores on average.
        memory_clock_mhz: Clock of the memory.
        temperature_c: Temperature, degrees Celsius.
        power_limit_w: Enforced power limit, W.
        throttle_reasons: Names of the reasons why the clock is held down, ``""`` for none, joined by commas.
    """

    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_limit_w: float | None = None
    throttle_reasons: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SoftwareStack:
    """Versions that a measurement holds for; ``""`` where there is no such part.

    Args:
        driver: GPU driver.
        cuda: CUDA runtime that the framework was built with.
        cudnn: cuDNN.
        framework: Framework and version, with the installed libraries that models come from, such as
            ``"torch 2.13.0, timm 1.0.31"`` or ``"onnxruntime 1.31.1"``.
        python: Python version.
        platform: Operating system and machine, such as ``"Linux-6.1-x86_64"``.
        host_cpu: Model name of the host's processor.
        threads: Threads that the framework may use on the host.
    """

    driver: str = ""
    cuda: str = ""
    cudnn: str = ""
    framework: str = ""
    python: str = ""
    platform: str = ""
    host_cpu: str = ""
    threads: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One configuration of one model on one device, measured.

    Figures are None where the run did not get that far, or where the device has no way to tell.

    Args:
        outcome: How it ended.
        message: Why it did not end well, one line; else ``""``.
        device: Device as it names itself (NVML without the vendor), such as ``"H200"``; for a CPU its model name.
        measured_at: When it ended, UTC, ISO 8601.
        duration_s: Wall time of the whole measurement, model building left out.
        build_s: Wall time to build the model and its inputs; 0 where an earlier configuration had built it.
        warmup_runs: Calls before timing.
        timed_runs: Calls that were timed.
        latency_ms: Mean wall time of one call (one step in training), ms.
        latency_std_ms: Standard deviation over the timed calls, ms.
        latency_median_ms: Median, ms.
        latency_min_ms: Smallest, ms.
        latency_max_ms: Largest, ms.
        device_time_ms: Mean time of one call by CUDA events, ms.
        energy_j: Energy of one call, idle draw included, J.
        energy_source: ``"nvml-total-energy"``, ``"nvml-power"`` (sampled) or ``"rapl"``.
        energy_window_s: Length of the window that the energy was taken over, s.
        idle_power_w: Mean power before the model ran, W.
        memory_mb: Device memory that the process held at its peak, MiB; on a CPU its peak resident memory.
        memory_source: ``"nvml-process"``, ``"nvml-device"`` (all of the device less what was used before) or ``"rss"``.
        context_mb: The part of it that is no memory of the model's, MiB: on a GPU what the process held outside
            PyTorch's allocator right after the runs (CUDA context and all kernels loaded so far), so that the rest is
            what the allocator held; on a CPU, in onnxruntime and in a row that failed, what was there before the model.
        allocated_peak_mb: Peak of ``max_memory_allocated``, MiB.
        reserved_peak_mb: Peak of ``max_memory_reserved``, MiB.
        state: Clocks, temperature and power limit.
        software: Versions.
    """

    outcome: Outcome
    message: str = ""
    device: str
    measured_at: str
    duration_s: float = 0.0
    build_s: float = 0.0
    warmup_runs: int = 0
    timed_runs: int = 0
    latency_ms: float | None = None
    latency_std_ms: float | None = None
    latency_median_ms: float | None = None
    latency_min_ms: float | None = None
    latency_max_ms: float | None = None
    device_time_ms: float | None = None
    energy_j: float | None = None
    energy_source: str | None = None
    energy_window_s: float | None = None
    idle_power_w: float | None = None
    memory_mb: float | None = None
    memory_source: str | None = None
    context_mb: float | None = None
    allocated_peak_mb: float | None = None
    reserved_peak_mb: float | None = None
    state: DeviceState = field(default_factory=DeviceState)
    software: SoftwareStack = field(default_factory=SoftwareStack)

    @property
    def is_timed(self) -> bool:
        """Whether it tells how long a call takes."""
        return self.latency_ms is not None and 0.0 < self.latency_ms < math.inf

    @property
    def fits(self) -> bool | None:
        """Whether it fitted in the device's memory; None where that was not seen."""
        if self.outcome is Outcome.OUT_OF_MEMORY:
            return False
        return True if self.outcome in (Outcome.OK, Outcome.NOT_FINITE) else None
