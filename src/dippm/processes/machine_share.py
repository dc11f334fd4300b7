"""What this process may use of its machine: all of it, or what a container or a scheduler leaves it.

A machine says how much it has, and not how much of that is ours. Linux keeps the limits of a container in control
groups, of which there are two versions; a limit holds for all groups below it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import ceil
from pathlib import Path, PurePosixPath

__all__ = ["busy_processors", "usable_memory_mb", "usable_processors"]

_MIB = 2**20
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_UNIFIED = "unified"  # where version 2 lies beside version 1


def usable_processors(groups: Path = _GROUPS, own_groups: Path = _OWN_GROUPS) -> int:
    """Processors that this process may keep busy, at least 1; a share of one counts as one.

    Args:
        groups: Where the system shows control groups.
        own_groups: Where it says which are those of this process.
    """
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = [here]
    for folder in _own_folders("cpu", groups, own_groups):
        for words in (
            _read_words(folder / "cpu.max"),
            _read_words(folder / "cpu.cfs_quota_us") + _read_words(folder / "cpu.cfs_period_us"),
        ):
            # No limit is "max" or "-1".
            if len(words) == 2 and all(word.isdecimal() for word in words):
                quota, period = map(int, words)
                found.append(ceil(quota / max(period, 1)))
    return max(1, min(found))


def busy_processors() -> float:
    """Processors that whoever runs on this machine kept busy or waited for in the last minute; 0 where nobody says."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):  # not every system says
        return 0.0


def usable_memory_mb(groups: Path = _GROUPS, own_groups: Path = _OWN_GROUPS) -> int:
    """Memory that this process may fill, MiB; 0 where nothing is known of it.

    Args:
        groups: Where the system shows control groups.
        own_groups: Where it says which are those of this process.
    """
    try:
        here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system says
        return 0
    found = [here]
    for folder in _own_folders("memory", groups, own_groups):
        for name in ("memory.max", "memory.limit_in_bytes"):
            found += [int(word) for word in _read_words(folder / name) if word.isdecimal()]
    return min(found) // _MIB


def _own_folders(controller: str, groups: Path, own_groups: Path) -> Iterator[Path]:
    """Folders of this process's groups of both versions, and of all above them; in a container some are not shown."""
    for line in _read_lines(own_groups):
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            tops = [groups, groups / _UNIFIED]
        elif controller in controllers.split(","):
            tops = [groups / controller]
        else:
            continue
        names = PurePosixPath(path).parts[1:]
        for top in tops:
            for depth in range(len(names), -1, -1):
                yield top.joinpath(*names[:depth])


def _read_words(path: Path) -> list[str]:
    return [word for line in _read_lines(path) for word in line.split()]


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
