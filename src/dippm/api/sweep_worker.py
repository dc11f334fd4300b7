"""A worker's process of a sweep: one task after the other, under limits.

Run as ``python -P -m dippm.api.sweep_worker SOCKET MEMORY_MB`` by a guardian, which limits it and ends it when the
sweep ends. The settings come first, then tasks; the answers are each task's rows as an Arrow stream.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection

from dippm.api.sweep_rows import encode_rows, frugal_pyarrow, predict_task
from dippm.api.sweep_settings import SweepSettings
from dippm.processes.peak_memory import peak_memory_mb
from dippm.processes.silence import fall_silent

__all__ = ["LEAVING", "READY", "main"]

#: What a worker says beside rows: that it has begun, and that it will do no more.
READY, LEAVING = b"ready", b"leaving"
# A worker that has taken more than this part of its memory at some time makes room for a fresh one.
_FULL = 0.5


def main() -> None:
    """Answer tasks until the sweep closes the socket."""
    descriptor, memory_mb = map(int, sys.argv[1:])
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, signal.SIG_IGN)  # whoever started it decides when it ends
    with Connection(descriptor) as connection, frugal_pyarrow(), suppress(EOFError, BrokenPipeError):
        settings: SweepSettings = connection.recv()
        with suppress(OSError):  # on another machine the folder may be missing; absolute paths are found all the same
            os.chdir(settings.folder)
        fall_silent()
        connection.send_bytes(READY)
        while True:
            connection.send_bytes(encode_rows(predict_task(connection.recv(), settings)))
            if (peak_memory_mb() or 0.0) > _FULL * memory_mb:
                connection.send_bytes(LEAVING)
                return


if __name__ == "__main__":
    main()
