"""First code of the converter's process: takes its limits on, then runs the converter's module.

Run as ``python -m dippm.frontends.conversion.child WORKER REQUEST``. Limits are set here and not between the fork and
the exec of the parent, where a program with threads must not run Python.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["main"]

_PARENT_CHECK_S = 0.5
_SPARE_CPU_S = 10
_MIB = 2**20


def main() -> None:
    """Run a worker module under the limits of its request."""
    _, worker, request_path = sys.argv
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    threading.Thread(target=_die_with, args=(int(request["parent"]),), daemon=True).start()
    _limit(memory_mb=int(request["memory_mb"]), output_mb=int(request["output_mb"]), seconds=float(request["seconds"]))
    sys.argv = [worker, request_path]
    runpy.run_module(worker, run_name="__main__", alter_sys=True)
    # The answer is written; frameworks take half a second to put themselves away.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _limit(*, memory_mb: int, output_mb: int, seconds: float) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    # Frameworks map far more than they use; what is private and can be written to is what they allocate.
    wanted = {
        resource.RLIMIT_DATA: memory_mb * _MIB,
        resource.RLIMIT_FSIZE: output_mb * _MIB,
        resource.RLIMIT_CORE: 0,
        # Ends a process that native code keeps from seeing that its parent has gone. Threads add up: none that keeps
        # to its wall time comes near.
        resource.RLIMIT_CPU: int(seconds * (os.cpu_count() or 1)) + _SPARE_CPU_S,
    }
    for kind, size in wanted.items():
        hard = resource.getrlimit(kind)[1]
        lowered = size if hard == resource.RLIM_INFINITY else min(size, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (lowered, lowered))


def _die_with(parent_id: int) -> None:
    """End this process, with what it started, when the one that started it is gone."""
    while os.getppid() == parent_id:
        time.sleep(_PARENT_CHECK_S)
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
