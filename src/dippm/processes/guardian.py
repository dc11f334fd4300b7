"""First process of a guarded one: takes its limits on, starts it, and ends it with all that it started.

Run by its path, as ``python -I -S guardian.py SETTINGS COMMAND...``, by :mod:`dippm.processes.guarded_process`. Native
code that keeps the interpreter's lock would also keep a thread of the guarded process from seeing that nobody waits for
it any more; here no such code runs. Only the standard library is there.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

__all__: list[str] = []

_CHECK_S = 0.5
_MIB = 2**20
_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def _main() -> None:
    settings = json.loads(sys.argv[1])
    for kind in (signal.SIGINT, signal.SIGTERM):
        # Whoever stops a service may stop all its processes; when this one ends its caller decides. A handler, and not
        # to ignore them: what is ignored would be ignored in the guarded process as well.
        signal.signal(kind, lambda *_: None)
    _limit(settings["limits"])
    _adopt_orphans()
    guarded = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, close_fds=False)
    is_left = threading.Event()
    threading.Thread(target=_follow, args=(settings["caller"], guarded, is_left), daemon=True).start()
    status = guarded.wait()
    _end_orphans()
    if is_left.is_set() and sys.platform != "win32":
        os.killpg(0, signal.SIGKILL)
    _end_like(status)


def _limit(limits: dict[str, int]) -> None:
    """Limit this process, from which the guarded one inherits."""
    try:
        import resource
    except ImportError:  # Windows
        return
    wanted = {
        # Frameworks map far more than they use; what is private and can be written to is what they allocate.
        resource.RLIMIT_DATA: limits["memory_mb"] * _MIB,
        resource.RLIMIT_FSIZE: limits["file_mb"] * _MIB,
        resource.RLIMIT_CORE: 0,
    }
    if "cpu_s" in limits:
        wanted[resource.RLIMIT_CPU] = limits["cpu_s"]
    for kind, size in wanted.items():
        hard = resource.getrlimit(kind)[1]
        lowered = size if hard == resource.RLIM_INFINITY else min(size, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (lowered, lowered))


def _follow(caller: int, guarded: subprocess.Popen[bytes], is_left: threading.Event) -> None:
    """End the guarded process when the caller is gone or lets go of the pipe that is this process's input."""
    if sys.platform == "win32":
        sys.stdin.buffer.read()
    else:
        import select

        # A process that the caller forked may hold the pipe's other end; the caller's id tells then.
        while os.getppid() == caller and not select.select([0], [], [], _CHECK_S)[0]:
            pass
    is_left.set()
    guarded.kill()


def _adopt_orphans() -> None:
    """Have what processes below this one leave behind given to this one, where the system can."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_orphans() -> None:
    """End, and wait for, whatever was left behind, also what left the process's group."""
    while children := _children():
        for child in children:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


def _children() -> list[int]:
    """Processes that this one would have to wait for; none where the system does not say."""
    found: list[int] = []
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, listed.read_text(encoding="ascii").split())
    return found


def _end_like(status: int) -> None:
    """End as the guarded process ended, by the same signal where one ended it."""
    if status < 0:
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    _main()
