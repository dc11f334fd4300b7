"""Processes that share a device and measure one at a time.

What surrounds a measurement, building a model and the first calls in which libraries choose and load their kernels,
keeps the host busy far longer than the measurement keeps the device. Several processes may do that side by side; while
one of them measures, the others stand still.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["DeviceTurns"]

_GATE, _ROOM = "gate", "room"


class DeviceTurns:
    """Turns at a device among all processes that name the same folder.

    Locks are the kernel's and go with their process, however it ends.

    Args:
        folder: A folder on a local drive; made where it is missing. None where there is nobody else.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def is_shared(self) -> bool:
        """Whether other processes may be at the device."""
        return self._folder is not None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Use the device while others do, and while nobody measures. Turns do not nest."""
        if self._folder is None:
            yield
            return
        import fcntl

        with (self._folder / _GATE).open("wb") as gate, (self._folder / _ROOM).open("wb") as room:
            # Whoever waits to measure holds the gate: otherwise those who come and go would keep it out for ever.
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_SH)
            fcntl.flock(gate, fcntl.LOCK_UN)
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Use the device while nobody else does. Turns do not nest."""
        if self._folder is None:
            yield
            return
        import fcntl

        with (self._folder / _GATE).open("wb") as gate, (self._folder / _ROOM).open("wb") as room:
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_EX)
            yield
