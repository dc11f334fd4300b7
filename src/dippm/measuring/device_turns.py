"""Processes that share a device and measure one at a time.

What surrounds a measurement, building a model and the first calls in which libraries choose and load their kernels,
keeps the host busy far longer than the measurement keeps the device. Several processes do that side by side; while one
of them measures, the others stand still.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["DeviceTurns"]


class DeviceTurns:
    """Turns at a device among all processes that name the same folder.

    Locks are the kernel's and go with their process, however it ends.

    Args:
        folder: A folder on a local drive; made where it is missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._gate = (folder / "gate").open("wb")
        self._room = (folder / "room").open("wb")

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Use the device while others may, and while nobody is alone at it; turns do not nest."""
        # Whoever waits to be alone holds the gate: otherwise those who come and go would keep it out for ever.
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_SH)
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)
            fcntl.flock(self._gate, fcntl.LOCK_UN)

    def be_alone(self) -> None:
        """Within a turn: wait until all others have ended theirs, and keep them out to the end of this one."""
        fcntl.flock(self._room, fcntl.LOCK_UN)
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_EX)

    def close(self) -> None:
        """Leave for good."""
        self._gate.close()
        self._room.close()

    def __enter__(self) -> DeviceTurns:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
