"""Processes under limits that do not outlive the one that started them, whatever they are doing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

__all__ = ["GuardedProcess", "ProcessLimits", "end_guarded", "kill_guarded", "start_guarded"]

_PATIENCE_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05
_GUARDIAN = str(Path(__file__).with_name("guardian.py"))


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessLimits:
    """What a process, and each that it starts, may take. Linux holds to all of it; other systems may not.

    Args:
        memory_mb: Memory that it may allocate, MiB.
        file_mb: Size of any one file that it may write, MiB.
        cpu_s: Processor time, s; None for any.
    """

    memory_mb: int
    file_mb: int
    cpu_s: int | None = None


class GuardedProcess(subprocess.Popen[bytes]):
    """The guardian of a process. Whatever is left of its group ends before its end is told.

    Once the system has told the end of a group's last process, the group's id is free for processes of others.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._telling = threading.Lock()
        super().__init__(*args, **options)

    def poll(self) -> int | None:
        """How it ended; None while it runs."""
        with self._telling:
            if self.returncode is None:
                self._follow_end()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Args:
            timeout: For how long, s; None for as long as it takes.

        Returns:
            How it ended.

        Raises:
            subprocess.TimeoutExpired: It did not end in that time.
        """
        end_s = None if timeout is None else time.monotonic() + timeout
        pause_s = _FIRST_PAUSE_S
        while (status := self.poll()) is None:
            left_s = _LONGEST_PAUSE_S if end_s is None else end_s - time.monotonic()
            if timeout is not None and left_s <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return status

    def end_group(self) -> None:
        """End it and what is left of its group, unless its end was told already."""
        with self._telling:
            if self.returncode is None:
                self._end_group()

    def _follow_end(self) -> None:
        if sys.platform == "win32" or not hasattr(os, "waitid"):
            if super().poll() is not None:
                self._end_group()  # at once: the id has just become free
            return
        with suppress(ChildProcessError):  # its end was told to somebody else
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return
            self._end_group()
        super().poll()

    def _end_group(self) -> None:
        if sys.platform != "win32":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def start_guarded(
    command: Sequence[str],
    *,
    limits: ProcessLimits,
    environment: Mapping[str, str],
    folder: Path | None = None,
    output: int | IO[bytes] = subprocess.DEVNULL,
    errors: int | IO[bytes] | None = None,
    descriptors: Sequence[int] = (),
) -> GuardedProcess:
    """Start a command in a process of its own, which ends when this one does.

    What is returned is its guardian: the leader of a session and a process group that hold all of it, which ends like
    the command does. Nothing comes on the command's input.

    Args:
        command: Program and arguments.
        limits: What it may take.
        environment: All its variables.
        folder: Where it works; this process's folder if absent.
        output: Where its output goes, as :class:`subprocess.Popen` takes it.
        errors: Where its errors go; where this process's go if absent.
        descriptors: Open files that it gets.
    """
    limited = {"memory_mb": limits.memory_mb, "file_mb": limits.file_mb}
    if limits.cpu_s is not None:
        limited["cpu_s"] = limits.cpu_s
    settings = json.dumps({"caller": os.getpid(), "limits": limited})
    return GuardedProcess(
        [sys.executable, "-I", "-S", _GUARDIAN, settings, *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
        cwd=folder,
        env=dict(environment),
        pass_fds=tuple(descriptors),
        start_new_session=True,
    )


def kill_guarded(guardian: GuardedProcess) -> None:
    """Have what :func:`start_guarded` started end at once, with all that it started, without waiting for that."""
    if guardian.stdin is not None:
        guardian.stdin.close()


def end_guarded(guardian: GuardedProcess) -> None:
    """End what :func:`start_guarded` started, with all that it started, and wait for it; it may have ended already."""
    kill_guarded(guardian)
    with suppress(subprocess.TimeoutExpired):
        guardian.wait(_PATIENCE_S)
    guardian.end_group()  # where it was stopped from outside
    guardian.wait()
