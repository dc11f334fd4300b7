"""Processes under limits that do not outlive the one that started them, whatever they are doing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

__all__ = ["ProcessLimits", "end_guarded", "kill_guarded", "start_guarded"]

_PATIENCE_S = 5.0
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


def start_guarded(
    command: Sequence[str],
    *,
    limits: ProcessLimits,
    environment: Mapping[str, str],
    folder: Path | None = None,
    output: int | IO[bytes] = subprocess.DEVNULL,
    errors: int | IO[bytes] | None = None,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
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
    return subprocess.Popen(
        [sys.executable, "-I", "-S", _GUARDIAN, settings, *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
        cwd=folder,
        env=dict(environment),
        pass_fds=tuple(descriptors),
        start_new_session=True,
    )


def kill_guarded(guardian: subprocess.Popen[bytes]) -> None:
    """Have what :func:`start_guarded` started end at once, with all that it started, without waiting for that."""
    if guardian.stdin is not None:
        guardian.stdin.close()


def end_guarded(guardian: subprocess.Popen[bytes]) -> None:
    """End what :func:`start_guarded` started, with all that it started, and wait for it; it may have ended already."""
    kill_guarded(guardian)
    with suppress(subprocess.TimeoutExpired):
        guardian.wait(_PATIENCE_S)
    if sys.platform != "win32":
        # Where the guardian was ended or stopped from outside, or the system gives it no orphans. A group keeps its id
        # while anything of it is left, also after its first process.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(guardian.pid, signal.SIGKILL)
    guardian.wait()
