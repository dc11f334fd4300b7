"""What NVML tells, and that all of it may be missing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dippm.measuring import nvml
from dippm.measuring.measurement import DeviceState
from dippm.measuring.nvml import Nvml, NvmlDevice

BB = SimpleNamespace(uuid="bb", pci_bus_id=1, pci_device_id=0, pci_domain_id=0)


def test_a_device_is_found_by_what_it_is_and_not_by_its_index(fake_nvml: Any) -> None:
    library = Nvml()
    by_uuid = library.find(BB)
    by_bus = library.find(SimpleNamespace(pci_bus_id=2, pci_device_id=0, pci_domain_id=0))
    assert by_uuid is not None
    assert by_bus is not None
    assert by_uuid.name() == by_bus.name() == "NVIDIA H100 NVL"
    assert library.find(SimpleNamespace(uuid="zz")) is None
    fake_nvml.cards[1].uuid = "MIG-bb"
    assert library.find(BB) is not None


def test_a_slice_is_never_taken_for_the_whole_gpu(fake_nvml: Any) -> None:
    from fake_nvml import Card

    gpu = fake_nvml.cards[1]
    gpu.slices = [Card("MIG-s1", "", name="NVIDIA H100 MIG 1g.10gb"), Card("MIG-s2", "")]
    library = Nvml()
    assert [device.uuid() for device in library.devices()] == ["GPU-aa", "GPU-bb", "MIG-s1", "MIG-s2"]
    found = library.find(SimpleNamespace(uuid="s1", pci_bus_id=2, pci_device_id=0, pci_domain_id=0))
    assert found is not None
    assert found.name() == "NVIDIA H100 MIG 1g.10gb"
    # A name of the whole, or its place on the bus, does not tell which slice it is.
    assert library.find(BB) is None
    assert library.find(SimpleNamespace(pci_bus_id=2, pci_device_id=0, pci_domain_id=0)) is None


def test_figures(fake_nvml: Any) -> None:
    device = Nvml().devices()[0]
    card = fake_nvml.cards[0]
    card.processes = [(7, 2 * 2**30), (8, None)]
    assert device.total_energy_j() == 5000
    assert device.power_w() == 100
    card.instant_mw = 350_500
    assert device.power_w() == pytest.approx(350.5)
    assert device.used_mb() == 1000
    assert (device.process_mb(7), device.process_mb(8), device.process_mb(9)) == (2048, None, None)
    assert Nvml().driver() == "580.1"
    assert device.state() == DeviceState(
        sm_clock_mhz=1980,
        memory_clock_mhz=3201,
        temperature_c=41,
        power_limit_w=700,
        throttle_reasons="sw-power-cap,hw-thermal-slowdown",
    )


def test_an_idle_device_is_not_throttled(fake_nvml: Any) -> None:
    fake_nvml.cards[0].reasons = 0x1
    assert Nvml().devices()[0].state().throttle_reasons == ""


def test_reasons_that_only_newer_drivers_name(fake_nvml: Any) -> None:
    fake_nvml.cards[0].reasons = 0x200 | 0x400
    assert Nvml().devices()[0].state().throttle_reasons == "board-limit,reliability"


def test_everything_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_load", lambda: None)
    library = Nvml()
    device = NvmlDevice(library, object())
    assert library.devices() == []
    assert library.find(BB) is None
    assert library.driver() == ""
    assert [device.name(), device.power_w(), device.used_mb(), device.process_mb(1), device.total_energy_j()] == [
        None
    ] * 5
    assert device.state() == DeviceState()


def test_the_real_library_does_not_fail_without_a_driver() -> None:
    assert isinstance(Nvml().devices(), list)
