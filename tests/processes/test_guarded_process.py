"""Guarded processes, and what becomes of them when their caller ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from dippm.processes import guarded_process
from dippm.processes.guarded_process import GuardedProcess, ProcessLimits, end_guarded, start_guarded

LIMITS = ProcessLimits(memory_mb=500, file_mb=20)
# Starts a process of its own, says who both are, and does as it is told.
GUARDED = (
    "import ctypes, os, signal, subprocess, sys, time; "
    "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)']); "
    "sys.stdout.write(f'{os.getpid()} {child.pid}\\n'); sys.stdout.flush(); "
)
# Native code that keeps the interpreter's lock: no other thread of the process ever runs again.
HOLD = "ctypes.PyDLL(None).sleep(600)"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def start(code: str, *, said: int = 1) -> tuple[GuardedProcess, list[int]]:
    """A guarded process, and the ids of it and its child, and of whoever else says so in lines of its own."""
    guardian = start_guarded(
        [sys.executable, "-S", "-c", GUARDED + code], limits=LIMITS, environment=os.environ, output=subprocess.PIPE
    )
    assert guardian.stdout is not None
    with guardian.stdout as stream:
        return guardian, [int(word) for _ in range(said) for word in stream.readline().split()]


def test_it_ends_with_its_children_whatever_it_is_doing(
    assert_gone: Callable[[Iterable[int]], None], is_running: Callable[[int], bool]
) -> None:
    guardian, processes = start(HOLD)
    assert all(map(is_running, processes))
    end_guarded(guardian)
    assert guardian.returncode == -signal.SIGKILL
    assert_gone(processes)


def test_what_it_left_behind_ends_with_it(assert_gone: Callable[[Iterable[int]], None]) -> None:
    guardian, processes = start("os._exit(0)")
    assert guardian.wait(30) == 0
    end_guarded(guardian)
    assert_gone(processes)


def test_a_guardian_that_was_killed_leaves_nothing_either(assert_gone: Callable[[Iterable[int]], None]) -> None:
    guardian, processes = start(HOLD)
    os.kill(guardian.pid, signal.SIGKILL)
    guardian.wait(30)
    end_guarded(guardian)
    assert_gone(processes)


def test_what_left_its_group_ends_as_well_and_waits_for_nobody() -> None:
    code = (
        "os.fork() or (os.setsid(), os.fork() and os._exit(0), "
        "sys.stdout.write(f'{os.getpid()}\\n'), sys.stdout.flush(), time.sleep(600)); time.sleep(600)"
    )
    guardian, processes = start(code, said=2)
    assert len(processes) == 3
    end_guarded(guardian)
    assert [each for each in processes if Path(f"/proc/{each}").exists()] == []


def test_a_guardian_that_was_stopped_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, assert_gone: Callable[[Iterable[int]], None]
) -> None:
    monkeypatch.setattr(guarded_process, "_PATIENCE_S", 0.1)
    guardian, processes = start(HOLD)
    os.kill(guardian.pid, signal.SIGSTOP)
    end_guarded(guardian)
    assert_gone(processes)


def test_its_group_is_signalled_only_while_nobody_else_can_have_its_id(
    monkeypatch: pytest.MonkeyPatch, assert_gone: Callable[[Iterable[int]], None]
) -> None:
    signalled: list[tuple[int, bool]] = []
    guardian, processes = start("os._exit(0)")
    # Its processes end without the group's signal; what the system was told of it is in /proc no more.
    monkeypatch.setattr(os, "killpg", lambda group, _: signalled.append((group, Path(f"/proc/{group}").exists())))
    assert guardian.wait(30) == 0
    end_guarded(guardian)
    end_guarded(guardian)
    assert signalled == [(guardian.pid, True)]
    assert_gone(processes)


def test_who_waits_for_it_may_do_so_for_a_time() -> None:
    guardian, _ = start(HOLD)
    with pytest.raises(subprocess.TimeoutExpired):
        guardian.wait(0.05)
    assert guardian.poll() is None
    end_guarded(guardian)
    assert (guardian.poll(), guardian.wait(0)) == (-signal.SIGKILL, -signal.SIGKILL)


def test_it_gets_the_files_that_it_is_given() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream:
        code = f"import os; os.write({writing}, b'here')"
        guardian = start_guarded(
            [sys.executable, "-S", "-c", code], limits=LIMITS, environment=os.environ, descriptors=[writing]
        )
        os.close(writing)
        assert stream.read() == b"here"
    assert guardian.wait(30) == 0
    end_guarded(guardian)


# What was forked from the caller holds the pipe by which the guardian would learn of its end.
@pytest.mark.parametrize("meanwhile", ["", "os.fork() or time.sleep(15); "])
def test_it_does_not_outlive_a_caller_that_is_killed(
    meanwhile: str, assert_gone: Callable[[Iterable[int]], None]
) -> None:
    code = (
        f"import os, sys, time; sys.path[:] = {sys.path!r}; "
        "from dippm.processes.guarded_process import *; "
        f"start_guarded([sys.executable, '-S', '-c', {GUARDED + HOLD!r}], limits=ProcessLimits(memory_mb=500, "
        f"file_mb=20), environment=os.environ, output=1); {meanwhile}time.sleep(600)"
    )
    caller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert caller.stdout is not None
        processes = list(map(int, caller.stdout.readline().split()))
        caller.kill()
        caller.wait()
        assert len(processes) == 2
        assert_gone(processes)
    finally:
        os.killpg(caller.pid, signal.SIGKILL) if meanwhile else None
        assert caller.stdout is not None
        caller.stdout.close()
