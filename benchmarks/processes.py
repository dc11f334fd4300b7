"""Runs whole processes and says how long they took and how much memory they held."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Run:
    """One process from start to end.

    Args:
        seconds: Wall time.
        peak_mb: Peak resident memory, MiB.
        output: What it printed on stdout.
    """

    seconds: float
    peak_mb: float
    output: str


class RunFailure(SystemExit):
    """A command that failed or ran past its limit; a benchmark that has no use for that ends with it."""


def run(command: Sequence[str], *, limit_s: float | None = None) -> Run:
    """Run a command to its end; its stderr is shown only when it fails.

    Raises:
        RunFailure: When it fails, or still runs after ``limit_s`` seconds, when it is killed.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors)
        killer = None if limit_s is None else threading.Timer(limit_s, process.kill)
        if killer is not None:
            killer.start()
        # wait4 tells the peak of this one child; getrusage would mix it with those before it.
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        if killer is not None:
            killer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            sys.stderr.write(errors.read().decode(errors="replace"))
            raise RunFailure(f"{' '.join(command)} ended with status {process.returncode} after {seconds:.0f} s")
        peak_mb = usage.ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)
        return Run(seconds=seconds, peak_mb=peak_mb, output=output.read().decode())


def run_in_turn(
    commands: Mapping[str, Sequence[str]], *, rounds: int, limit_s: float | None = None
) -> dict[str, list[Run]]:
    """Run several commands in turn, so that whatever slows the machine for a while slows all of them.

    The first round warms the file cache and is not counted.

    Raises:
        RunFailure: When one fails, or takes more than ``limit_s`` seconds.
    """
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            result = run(command, limit_s=limit_s)
            if number:
                runs[name].append(result)
    return runs


def median_seconds(runs: Sequence[Run]) -> float:
    """Median wall time."""
    return statistics.median(each.seconds for each in runs)


def median_peak_mb(runs: Sequence[Run]) -> float:
    """Median peak resident memory, MiB."""
    return statistics.median(each.peak_mb for each in runs)
