"""Energy counters of a CPU's packages, from a made-up folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from dippm.measuring.rapl import RaplCounter


def make_zone(root: Path, folder: str, name: str, energy_uj: int, largest_uj: int = 1_000_000) -> Path:
    zone = root / folder
    zone.mkdir()
    (zone / "name").write_text(f"{name}\n")
    (zone / "energy_uj").write_text(f"{energy_uj}\n")
    (zone / "max_energy_range_uj").write_text(f"{largest_uj}\n")
    return zone


def test_packages_are_added_up(tmp_path: Path) -> None:
    first = make_zone(tmp_path, "intel-rapl:0", "package-0", 100)
    second = make_zone(tmp_path, "intel-rapl:1", "package-1", 200)
    counter = RaplCounter(tmp_path)
    assert counter.is_available
    assert counter.read_j() == 0
    (first / "energy_uj").write_text("500100")
    (second / "energy_uj").write_text("250200")
    assert counter.read_j() == pytest.approx(0.75)


def test_parts_and_the_platform_do_not_count(tmp_path: Path) -> None:
    package = make_zone(tmp_path, "intel-rapl:0", "package-0", 0)
    others = [
        make_zone(tmp_path, "intel-rapl:0:0", "core", 0),
        make_zone(tmp_path, "intel-rapl:1", "psys", 0),
        make_zone(tmp_path, "intel-rapl-mmio:0", "package-0", 0),
    ]
    counter = RaplCounter(tmp_path)
    for zone in (package, *others):
        (zone / "energy_uj").write_text("300000")
    assert counter.read_j() == pytest.approx(0.3)


def test_a_counter_that_wraps_around_goes_on(tmp_path: Path) -> None:
    zone = make_zone(tmp_path, "intel-rapl:0", "package-0", 900_000)
    counter = RaplCounter(tmp_path)
    for now, total in [(950_000, 0.05), (50_000, 0.15), (900_000, 1.0), (100_000, 1.2)]:
        (zone / "energy_uj").write_text(str(now))
        assert counter.read_j() == pytest.approx(total)


def test_nothing_to_read(tmp_path: Path) -> None:
    assert not RaplCounter(tmp_path / "absent").is_available
    zone = make_zone(tmp_path, "intel-rapl:0", "package-0", 1)
    counter = RaplCounter(tmp_path)
    (zone / "energy_uj").unlink()
    assert counter.read_j() is None
    assert not RaplCounter(tmp_path).is_available
