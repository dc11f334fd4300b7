"""Limits of control groups as containers show them, in files that look like the system's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dippm.processes.machine_share import busy_processors, usable_memory_mb, usable_processors

HERE_MB = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
HOST_CORES = 64


@pytest.fixture(name="system")
def _system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of many cores, all of them ours, and no control groups yet."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(HOST_CORES)), raising=False)
    return tmp_path


def write(system: Path, own: str, files: dict[str, str]) -> dict[str, Path]:
    groups, own_groups = system / "groups", system / "own"
    own_groups.write_text(own)
    for name, text in files.items():
        path = groups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return {"groups": groups, "own_groups": own_groups}


@pytest.mark.parametrize(
    ("own", "files", "cores", "memory_mb"),
    [
        # Version 2: a container of its own, as Docker makes it.
        ("0::/\n", {"cpu.max": "200000 100000", "memory.max": str(512 * 2**20)}, 2, 512),
        ("0::/\n", {"cpu.max": "150000 100000", "memory.max": "max"}, 2, HERE_MB),
        ("0::/\n", {"cpu.max": "max 100000", "memory.max": "max"}, HOST_CORES, HERE_MB),
        ("0::/\n", {"cpu.max": "50000 100000", "memory.max": str(2**62)}, 1, HERE_MB),
        # The limit of a group above holds as well.
        (
            "0::/job/step\n",
            {
                "job/cpu.max": "300000 100000",
                "job/step/cpu.max": "max 100000",
                "job/memory.max": str(2**30),
                "job/step/memory.max": str(256 * 2**20),
            },
            3,
            256,
        ),
        # The path is the host's, and only the container's own folder is shown.
        ("0::/docker/0123\n", {"cpu.max": "400000 100000", "memory.max": str(128 * 2**20)}, 4, 128),
        # Version 1, and no limits of it.
        (
            "4:memory:/box\n3:cpuacct,cpu:/box\n",
            {
                "cpu/box/cpu.cfs_quota_us": "250000",
                "cpu/box/cpu.cfs_period_us": "100000",
                "memory/box/memory.limit_in_bytes": str(64 * 2**20),
            },
            3,
            64,
        ),
        (
            "4:memory:/\n3:cpu:/\n",
            {
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": str(2**63 - 4096),
            },
            HOST_CORES,
            HERE_MB,
        ),
        # Version 2 beside version 1.
        ("1:name=systemd:/\n0::/a\n", {"unified/a/cpu.max": "700000 100000"}, 7, HERE_MB),
        ("", {}, HOST_CORES, HERE_MB),
    ],
)  # fmt: skip
def test_limits_of_control_groups_hold(
    system: Path, own: str, files: dict[str, str], cores: int, memory_mb: int
) -> None:
    where = write(system, own, files)
    assert (usable_processors(**where), usable_memory_mb(**where)) == (cores, memory_mb)


def test_fewer_cores_may_be_ours_than_a_group_allows(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    assert usable_processors(**write(system, "0::/\n", {"cpu.max": "800000 100000"})) == 1


def test_a_system_without_groups_has_all_of_its_machine(system: Path) -> None:
    nowhere = {"groups": system / "none", "own_groups": system / "none"}
    assert (usable_processors(**nowhere), usable_memory_mb(**nowhere)) == (HOST_CORES, HERE_MB)


def test_this_machine_has_something() -> None:
    assert usable_processors() >= 1
    assert 0 < usable_memory_mb() <= HERE_MB


def test_the_load_of_the_last_minute_and_none_where_nobody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 9.0, 9.0))
    assert busy_processors() == 1.5
    monkeypatch.delattr(os, "getloadavg")
    assert busy_processors() == 0.0
