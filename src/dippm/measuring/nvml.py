"""NVML, of which any part may be missing: the library, a function, or a figure on this card. Missing is None."""

from __future__ import annotations

import functools
import logging
from importlib.util import find_spec
from typing import Any

from dippm.measuring.measurement import DeviceState
from dippm.units import bytes_to_mib

__all__ = ["Nvml", "NvmlDevice"]

_LOG = logging.getLogger(__name__)

# Constants of nvml.h, written out because older bindings lack some of their names.
_CLOCK_SM = 1
_CLOCK_MEMORY = 2
_TEMPERATURE_GPU = 0
_FIELD_POWER_INSTANT = 186
_MIG_OFF = 0
# Bit 0, "GPU idle", is left out: an idle device's clock is not held down by anything.
_THROTTLE_REASONS = {
    0x002: "applications-clocks",
    0x004: "sw-power-cap",
    0x008: "hw-slowdown",
    0x010: "sync-boost",
    0x020: "sw-thermal-slowdown",
    0x040: "hw-thermal-slowdown",
    0x080: "hw-power-brake",
    0x100: "display-clocks",
    0x200: "board-limit",
    0x400: "reliability",
}


class Nvml:
    """The library, initialised once per process. Without it every question is answered by None."""

    def __init__(self) -> None:
        self._library = _load()

    def ask(self, function: str, *arguments: object) -> Any:
        """Call a function of the library; None where it is missing, or fails."""
        call = getattr(self._library, function, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except self._library.NVMLError as exc:
            _LOG.debug("%s: %s", function, exc)
            return None

    def devices(self) -> list[NvmlDevice]:
        """All GPUs in NVML's order, each followed by its MIG slices."""
        found = []
        for gpu in self._handles("nvmlDeviceGetHandleByIndex", count=self.ask("nvmlDeviceGetCount")):
            slices = self.ask("nvmlDeviceGetMaxMigDeviceCount", gpu)
            found += [gpu, *self._handles("nvmlDeviceGetMigDeviceHandleByIndex", gpu, count=slices)]
        return [NvmlDevice(self, handle) for handle in found]

    def find(self, properties: Any) -> NvmlDevice | None:
        """The device that PyTorch describes, a GPU or a MIG slice.

        PyTorch's indices are no help: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER change them and not NVML's.

        Args:
            properties: What ``torch.cuda.get_device_properties`` returned.
        """
        uuid = getattr(properties, "uuid", None)
        handle = self.ask("nvmlDeviceGetHandleByUUID", f"MIG-{uuid}")
        if handle is None:
            handle = self._find_gpu(properties, f"GPU-{uuid}")
        return None if handle is None else NvmlDevice(self, handle)

    def driver(self) -> str:
        """Version of the driver, ``""`` where unknown."""
        return _text(self.ask("nvmlSystemGetDriverVersion")) or ""

    def _handles(self, function: str, *arguments: object, count: int | None) -> list[Any]:
        found = [self.ask(function, *arguments, index) for index in range(count or 0)]
        return [handle for handle in found if handle is not None]

    def _find_gpu(self, properties: Any, uuid: str) -> Any:
        """A whole GPU; None where MIG divides it: PyTorch then has a slice, whose figures are not the whole's."""
        handle = self.ask("nvmlDeviceGetHandleByUUID", uuid)
        if handle is None:
            handle = self._at_bus(properties)
        mode = None if handle is None else self.ask("nvmlDeviceGetMigMode", handle)
        is_divided = mode is not None and mode[0] != _MIG_OFF
        return None if is_divided else handle

    def _at_bus(self, properties: Any) -> Any:
        bus, slot = getattr(properties, "pci_bus_id", None), getattr(properties, "pci_device_id", None)
        if bus is None or slot is None:
            return None
        domain = getattr(properties, "pci_domain_id", None) or 0
        return self.ask("nvmlDeviceGetHandleByPciBusId", f"{domain:08X}:{bus:02X}:{slot:02X}.0")


class NvmlDevice:
    """One device."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    def name(self) -> str | None:
        """Name as NVML gives it, with the vendor."""
        return _text(self._ask("nvmlDeviceGetName"))

    def uuid(self) -> str | None:
        """The name that no other device has."""
        return _text(self._ask("nvmlDeviceGetUUID"))

    def total_energy_j(self) -> float | None:
        """Energy since the driver was loaded, J. It moves every 20 to 100 ms."""
        return _scaled(self._ask("nvmlDeviceGetTotalEnergyConsumption"), 1e-3)

    def power_w(self) -> float | None:
        """Power now, W."""
        # nvmlDeviceGetPowerUsage is a mean over a second on most cards since Ampere, too slow to follow a short run.
        fields = self._ask("nvmlDeviceGetFieldValues", [_FIELD_POWER_INSTANT])
        if fields is not None and fields[0].nvmlReturn == 0 and fields[0].value.uiVal > 0:
            return float(fields[0].value.uiVal) * 1e-3
        return _scaled(self._ask("nvmlDeviceGetPowerUsage"), 1e-3)

    def used_mb(self) -> float | None:
        """Memory used on the device by all processes, MiB."""
        info = self._ask("nvmlDeviceGetMemoryInfo")
        return None if info is None else bytes_to_mib(float(info.used))

    def process_mb(self, process_id: int) -> float | None:
        """Memory that a process holds, MiB; None where NVML does not see it, as in most containers."""
        for function in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses"):
            for process in self._ask(function) or ():
                if process.pid == process_id and process.usedGpuMemory is not None:
                    return bytes_to_mib(float(process.usedGpuMemory))
        return None

    def state(self) -> DeviceState:
        """Clocks, temperature, power limit and throttle reasons now."""
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        temperature = self._ask("nvmlDeviceGetTemperature", _TEMPERATURE_GPU)
        if temperature is None:
            temperature = self._ask("nvmlDeviceGetTemperatureV", _TEMPERATURE_GPU)
        return DeviceState(
            sm_clock_mhz=_scaled(self._ask("nvmlDeviceGetClockInfo", _CLOCK_SM)),
            memory_clock_mhz=_scaled(self._ask("nvmlDeviceGetClockInfo", _CLOCK_MEMORY)),
            temperature_c=_scaled(temperature),
            power_limit_w=_scaled(self._ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
            throttle_reasons=None
            if reasons is None
            else ",".join(name for bit, name in _THROTTLE_REASONS.items() if reasons & bit),
        )

    def _ask(self, function: str, *arguments: object) -> Any:
        return self._nvml.ask(function, self._handle, *arguments)


@functools.cache
def _load() -> Any:
    """The binding, initialised; None where it or the driver's library is missing."""
    if find_spec("pynvml") is None:
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as exc:
        _LOG.debug("NVML: %s", exc)
        return None
    return pynvml


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _scaled(value: float | None, scale: float = 1.0) -> float | None:
    return None if value is None else float(value) * scale
