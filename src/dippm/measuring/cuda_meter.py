"""An NVIDIA GPU as a device: CUDA events, the caching allocator's peaks, and what NVML tells."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable

import torch

from dippm.measuring.cpu_meter import host_software
from dippm.measuring.device_names import cuda_name
from dippm.measuring.measurement import DeviceState, SoftwareStack
from dippm.measuring.meter import LONGEST_TICK_S, CallTime, EnergyCounter, MemoryReading
from dippm.measuring.nvml import Nvml, NvmlDevice
from dippm.measuring.sampled_energy import SampledEnergy
from dippm.units import MILLI, bytes_to_mib

__all__ = ["CudaMeter"]

_LOG = logging.getLogger(__name__)

_IDLE_SECONDS = 0.6
_IDLE_POLL_S = 0.001


class CudaMeter:
    """One GPU, as PyTorch counts them.

    Args:
        index: PyTorch's index of the device.
    """

    def __init__(self, index: int) -> None:
        self.device = f"cuda:{index}"
        nvml = Nvml()
        # Before CUDA starts in this process: what other processes hold must be told from what this one will hold.
        devices = nvml.devices()
        used_before = {device.uuid(): device.used_mb() for device in devices}
        # In a container NVML counts in the host's process ids. Whoever has ours before CUDA starts here is another.
        is_taken = any(device.process_mb(os.getpid()) is not None for device in devices)
        self._has_own_id = not is_taken or torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.set_device(index)
        self._index = index
        self._driver = nvml.driver()
        self._nvml = nvml.find(torch.cuda.get_device_properties(index))
        self._used_before_mb = None if self._nvml is None else used_before.get(self._nvml.uuid())
        self.device_name = cuda_name(index, nvml)
        self._energy = _energy_counter(self._nvml)
        # The first tensor and the first kernel make the context whole; without them it would be counted as the model's.
        self._run_tiny_kernel()
        self._start, self._end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        self.release_memory()
        self.idle_power_w = _idle_power_w(self._energy)

    @property
    def energy(self) -> EnergyCounter | None:
        """NVML's total energy, or power sampled by NVML where the card does not count energy."""
        return self._energy

    def synchronise(self) -> None:
        """Wait for all streams of the device."""
        torch.cuda.synchronize(self._index)

    def time_call(self, call: Callable[[], object]) -> tuple[object, CallTime]:
        """Run a call until the device has finished; time it by the wall clock and by events on the current stream."""
        begin = time.perf_counter()
        self._start.record()
        output = call()
        self._end.record()
        self.synchronise()
        wall_s = time.perf_counter() - begin
        return output, CallTime(wall_s=wall_s, device_s=self._start.elapsed_time(self._end) * MILLI)

    def is_usable(self) -> bool:
        """Whether a tiny kernel runs to its end: most errors of CUDA stay until the process ends, some do not."""
        try:
            self.release_memory()
            self._run_tiny_kernel()
        except RuntimeError as exc:  # the base of all errors that PyTorch raises for CUDA
            _LOG.debug("The device takes no more work: %s", exc)
            return False
        return True

    def release_memory(self) -> None:
        """Collect garbage and give what the caching allocator holds without need back to the driver."""
        gc.collect()
        # PyTorch keeps cuBLAS's workspaces (32 MiB on Hopper) as live tensors, one per thread and stream that ever
        # multiplied matrices. The call is missing in builds without CUDA and in old versions.
        clear_workspaces = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear_workspaces is not None:
            clear_workspaces()
        torch.cuda.empty_cache()

    def base_memory_mb(self) -> float | None:
        """Memory of the context and of kernels loaded so far, MiB."""
        outside, _ = self._outside_allocator_mb()
        return outside

    def reset_peaks(self) -> None:
        """Begin new peaks of the caching allocator.

        Called after the warm-up, so that what libraries take in their first calls and give back is no part of them.
        """
        torch.cuda.reset_peak_memory_stats(self._index)

    def read_memory(self) -> MemoryReading:
        """Peaks of the caching allocator since the last reset, and the memory of the process.

        NVML knows no peak, and what the process holds after the runs may be less than that: the caching allocator gives
        memory back when it would run out. The peak is the allocator's own, on top of what NVML counts beside it.
        """
        outside, source = self._outside_allocator_mb()
        reserved_peak = bytes_to_mib(torch.cuda.max_memory_reserved(self._index))
        return MemoryReading(
            memory_mb=None if outside is None else outside + reserved_peak,
            memory_source=source,
            context_mb=outside,
            allocated_peak_mb=bytes_to_mib(torch.cuda.max_memory_allocated(self._index)),
            reserved_peak_mb=reserved_peak,
        )

    def state(self) -> DeviceState:
        """Clocks, temperature, power limit and throttle reasons now."""
        return DeviceState() if self._nvml is None else self._nvml.state()

    def software(self, framework: str) -> SoftwareStack:
        """Versions, with the given framework."""
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        return host_software(
            framework, driver=self._driver, cuda=torch.version.cuda or "", cudnn="" if cudnn is None else str(cudnn)
        )

    def _run_tiny_kernel(self) -> None:
        torch.ones(1, device=self.device).add_(1)
        self.synchronise()

    def _outside_allocator_mb(self) -> tuple[float | None, str | None]:
        """Memory that the process holds now and the caching allocator did not take, and which way it was found."""
        held, source = self._held_mb()
        return None if held is None else held - bytes_to_mib(torch.cuda.memory_reserved(self._index)), source

    def _held_mb(self) -> tuple[float | None, str | None]:
        """Memory of this process by NVML, and which way it was found."""
        if self._nvml is None:
            return None, None
        reserved = bytes_to_mib(torch.cuda.memory_reserved(self._index))
        held = self._nvml.process_mb(os.getpid()) if self._has_own_id else None
        if held is not None and held >= reserved:
            return held, "nvml-process"
        used = self._nvml.used_mb()
        # Where less was added than the allocator took, another process has given memory back since.
        if used is None or self._used_before_mb is None or used - self._used_before_mb < reserved:
            return None, None
        return used - self._used_before_mb, "nvml-device"


class _TotalEnergy:
    """NVML's own counter."""

    source = "nvml-total-energy"

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device

    def start(self) -> None:
        """Begin a window."""

    def read_j(self) -> float | None:
        """Energy since the driver was loaded, J."""
        return self._device.total_energy_j()

    def stop(self) -> None:
        """End the window."""


def _energy_counter(device: NvmlDevice | None) -> EnergyCounter | None:
    if device is None:
        return None
    if device.total_energy_j() is not None:
        return _TotalEnergy(device)
    return SampledEnergy(device.power_w, source="nvml-power") if device.power_w() is not None else None


def _idle_power_w(counter: EnergyCounter | None) -> float | None:
    if counter is None:
        return None
    counter.start()
    before, began = _next_tick(counter)
    time.sleep(_IDLE_SECONDS)
    after, ended = _next_tick(counter)
    counter.stop()
    # A counter that stands still tells nothing.
    return None if before is None or after is None or after <= before else (after - before) / (ended - began)


def _next_tick(counter: EnergyCounter) -> tuple[float | None, float]:
    """Wait until the counter moves: its new value, and when that was."""
    before, deadline = counter.read_j(), time.perf_counter() + LONGEST_TICK_S
    while True:
        value, moment = counter.read_j(), time.perf_counter()
        if value != before or moment >= deadline:
            return value, moment
        time.sleep(_IDLE_POLL_S)
