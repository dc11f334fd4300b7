"""The guardian as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from dippm.processes.guarded_process import ProcessLimits, end_guarded, start_guarded

LIMITS = ProcessLimits(memory_mb=500, file_mb=20, cpu_s=100)


def run(code: str, limits: ProcessLimits = LIMITS) -> tuple[int, str]:
    """Exit status and output of Python code that is run under a guardian."""
    guardian = start_guarded(
        [sys.executable, "-S", "-c", code], limits=limits, environment=os.environ, output=subprocess.PIPE
    )
    assert guardian.stdout is not None
    with guardian.stdout as stream:
        said = stream.read().decode()
    status = guardian.wait(30)
    end_guarded(guardian)
    return status, said


@pytest.mark.parametrize("status", [0, 3])
def test_its_status_is_that_of_the_guarded_process(status: int) -> None:
    assert run(f"raise SystemExit({status})") == (status, "")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
@pytest.mark.parametrize("ending", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM])
def test_it_ends_by_the_same_signal(ending: signal.Signals) -> None:
    assert run(f"import os; os.kill(os.getpid(), {int(ending)})") == (-ending, "")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all the limits")
def test_limits_hold_and_cannot_be_raised() -> None:
    code = (
        "import resource as r; "
        "print(*(r.getrlimit(each) for each in (r.RLIMIT_DATA, r.RLIMIT_FSIZE, r.RLIMIT_CORE, r.RLIMIT_CPU)))"
    )
    mib = 2**20
    expected = f"{(500 * mib, 500 * mib)} {(20 * mib, 20 * mib)} (0, 0) (100, 100)\n"
    assert run(code) == (0, expected)
    # A guarded process within another one gets no more than that.
    inner = (
        "import os, sys; from dippm.processes.guarded_process import *; "
        f"sys.exit(start_guarded([sys.executable, '-S', '-c', {code!r}], "
        "limits=ProcessLimits(memory_mb=9000, file_mb=5), environment=os.environ, output=1).wait())"
    )
    status, said = run(f"import sys; sys.path[:] = {sys.path!r}; {inner}")
    assert (status, said) == (0, f"{(500 * mib, 500 * mib)} {(5 * mib, 5 * mib)} (0, 0) (100, 100)\n")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
def test_an_order_to_stop_to_all_is_for_the_guarded_process_to_judge() -> None:
    code = (
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); "
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True); "
        "signal.sigwait([signal.SIGTERM]); print('judged')"
    )
    guardian = start_guarded(
        [sys.executable, "-S", "-c", code], limits=LIMITS, environment=os.environ, output=subprocess.PIPE
    )
    assert guardian.stdout is not None
    with guardian.stdout as stream:
        # Orders that the guardian heeds itself do not come to be ignored by the other.
        assert stream.readline() == b"True\n"
        os.killpg(guardian.pid, signal.SIGTERM)
        assert stream.read() == b"judged\n"
    assert guardian.wait(30) == 0
    end_guarded(guardian)


def test_nothing_comes_on_its_input_and_its_folder_is_not_searched_for_modules() -> None:
    status, said = run("import sys, select; print(repr(sys.stdin.read()), select.__name__)")
    assert (status, said) == (0, "'' select\n")
