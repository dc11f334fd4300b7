"""The CPU as a device."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

pytest.importorskip("torch")

from dippm.measuring import cpu_meter
from dippm.measuring.cpu_meter import CpuMeter
from dippm.measuring.rapl import RaplCounter


def test_without_rapl_there_is_no_energy(tmp_path: Path) -> None:
    meter = CpuMeter(rapl=RaplCounter(tmp_path))
    assert meter.energy is None
    assert meter.idle_power_w is None


def test_idle_power_is_energy_over_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    for name, value in [("name", "package-0"), ("energy_uj", "0"), ("max_energy_range_uj", "1000000000")]:
        (zone / name).write_text(value)
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(cpu_meter.time, "sleep", lambda seconds: (zone / "energy_uj").write_text("90000000"))
    monkeypatch.setattr(cpu_meter.time, "perf_counter", lambda: next(clock))
    meter = CpuMeter(rapl=RaplCounter(tmp_path))
    assert meter.idle_power_w == pytest.approx(45.0)
    assert meter.energy is not None
    assert meter.energy.source == "rapl"


def test_what_a_call_needs(tmp_path: Path) -> None:
    meter = CpuMeter(rapl=RaplCounter(tmp_path))
    meter.release_memory()
    meter.reset_peaks()
    output, took = meter.time_call(lambda: _touch_new_pages(64 << 20))
    assert output == 64 << 20
    assert 0 < took.wall_s < 10
    assert took.device_s is None
    reading, base = meter.read_memory(), meter.base_memory_mb()
    if reading.memory_mb is not None and base is not None:
        assert reading.memory_source == "rss"
        assert reading.memory_mb > base + 50
    assert (meter.state().sm_clock_mhz or 1.0) > 0
    assert meter.software("torch 2").host_cpu == meter.device_name


def _touch_new_pages(size_bytes: int) -> int:
    """Take pages from the system, not from a heap that may keep freed ones; give them back."""
    with mmap.mmap(-1, size_bytes) as pages:
        return pages.write(b"x" * size_bytes)
