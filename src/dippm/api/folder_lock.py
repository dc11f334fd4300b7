"""One run at a time in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["lock_folder"]

_LOCK = "lock"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder until this one ends, however it does.

    The lock belongs to the process and goes with it; its empty file ``lock`` stays. On a system or a network drive
    without locks everybody is let in.

    Args:
        folder: It must be there.

    Raises:
        BlockingIOError: Another run is in it.
        OSError: The file of the lock cannot be written.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with (folder / _LOCK).open("wb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:  # the drive has no locks
            pass
        yield
