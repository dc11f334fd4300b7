"""Energy of a CPU's packages by RAPL, as Linux offers it under /sys/class/powercap."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["RaplCounter"]

_POWERCAP = Path("/sys/class/powercap")
# Top-level zones alone: their subzones (intel-rapl:0:0) are parts of them, and intel-rapl-mmio counts them again.
_PACKAGE_ZONE = re.compile(r"intel-rapl:\d+")
# "psys" is the whole platform, with the packages in it.
_PACKAGE_NAME = re.compile(r"package-\d+")


class RaplCounter:
    """Sum over the packages, carried on where a package's counter wraps around.

    A counter wraps after minutes at full power; a window must be read at least that often.

    Args:
        root: Folder of the power-capping zones.
    """

    source = "rapl"

    def __init__(self, root: Path = _POWERCAP) -> None:
        self._zones = [zone for zone in sorted(root.glob("intel-rapl:*")) if _is_package(zone)]
        self._last = [_read_number(zone / "energy_uj") for zone in self._zones]
        self._total_uj = 0

    @property
    def is_available(self) -> bool:
        """Whether there are packages and all of them can be read; many systems let only root read them."""
        return bool(self._zones) and None not in self._last

    def start(self) -> None:
        """Begin a window."""
        self.read_j()

    def read_j(self) -> float | None:
        """Energy since the counter was made, J."""
        for position, zone in enumerate(self._zones):
            now, before = _read_number(zone / "energy_uj"), self._last[position]
            if now is None or before is None:
                return None
            if now < before:
                self._total_uj += _read_number(zone / "max_energy_range_uj") or 0
            self._total_uj += now - before
            self._last[position] = now
        return self._total_uj * 1e-6

    def stop(self) -> None:
        """End the window."""


def _is_package(zone: Path) -> bool:
    try:
        name = (zone / "name").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return False
    return _PACKAGE_ZONE.fullmatch(zone.name) is not None and _PACKAGE_NAME.fullmatch(name) is not None


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
