"""The measuring protocol: warm up, time single calls, take the energy over a window that is long enough."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from dippm.measuring.measurement import DeviceState
from dippm.measuring.meter import LONGEST_TICK_S, CallTime, EnergyCounter, MemoryReading, Meter

__all__ = ["FEWEST_CALLS", "Plan", "Run", "TooSlowError", "run_protocol"]

_FEWEST_WARMUPS = 2
_FEWEST_TIMED = 3
FEWEST_CALLS = _FEWEST_WARMUPS + _FEWEST_TIMED
"""Calls of the slowest model."""

_WARMUP_SHARE = 0.25
# A window of energy that is shorter begins and ends where the counter moves, s.
_LONG_WINDOW_S = 2.0
# Reading a counter may take milliseconds in which the device has nothing to do: so much work lies between two, s.
_WORK_BETWEEN_READINGS_S = 0.01
# A GPU is under load for so long before its energy counts: a few short calls would leave its clocks and power low, s.
_GPU_LOAD_S = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How often a model is run.

    Args:
        warmup_runs: Calls before timing; fewer, at least 2, where they would take a quarter of the budget.
        timed_runs: Calls that are timed; fewer, at least 3, where they would take more than is left of the budget.
        budget_s: Time for all calls but the first, which compiles and chooses algorithms, s.
        energy_window_s: Shortest window for energy, s; calls go on until it is full.
        energy_share: Share of the configurations whose energy is taken, 0 to 1.
        limit_s: Time in which the fewest calls have to end, all that comes before them included, s.
    """

    warmup_runs: int = 5
    timed_runs: int = 30
    budget_s: float = 30.0
    energy_window_s: float = 0.6
    energy_share: float = 1.0
    limit_s: float = math.inf

    def takes_energy(self, key: str) -> bool:
        """Whether the energy of a configuration is taken: by a hash, so that every run chooses the same.

        Args:
            key: What names the configuration of the model.
        """
        return zlib.crc32(key.encode()) < self.energy_share * 2**32


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What came out of a protocol.

    Args:
        warmup_runs: Calls before timing.
        times: Times of the timed calls.
        energy_j: Energy of one call, J.
        energy_window_s: Length of the window that it was taken over, s.
        memory: Peaks from the first timed call on.
        state: State of the device after the last call.
        output: What the last call returned.
    """

    warmup_runs: int
    times: tuple[CallTime, ...]
    energy_j: float | None
    energy_window_s: float | None
    memory: MemoryReading
    state: DeviceState
    output: object


class TooSlowError(Exception):
    """The fewest calls do not end in time."""


def run_protocol(
    call: Callable[[], object], meter: Meter, plan: Plan, *, takes_energy: bool = True, deadline_s: float = math.inf
) -> Run:
    """Run a call as the plan says.

    Each timed call is waited for, so that its time is that of one call alone; those that follow to fill the window of
    the energy are run the same way. On a GPU whose energy is counted, calls go on after the warm-up until it has been
    under load for a quarter of a second.

    Args:
        call: Runs the model once.
        meter: The device.
        plan: How often.
        takes_energy: Whether the energy is taken, where the device counts it.
        deadline_s: When the calls are to have ended, as :func:`time.perf_counter` tells it.

    Raises:
        TooSlowError: Once a call has shown, after the first, that they will not have.
    """
    runner = _Runner(call, meter)
    warmup_runs, call_s, spent_s = _warm_up(runner, plan, deadline_s)
    meter.reset_peaks()
    left = int((plan.budget_s - spent_s) / max(call_s, 1e-9))
    timed_runs = min(plan.timed_runs, max(_FEWEST_TIMED, left))
    counter = meter.energy if takes_energy else None
    window = None if counter is None else _Window(counter, runner, expected_s=timed_runs * call_s)
    try:
        if window is not None:
            if meter.device != "cpu":
                runner.run_for(_GPU_LOAD_S - spent_s)
            window.open()
        times = tuple(runner.run() for _ in range(timed_runs))
        energy_j, window_s = (None, None) if window is None else window.close(timed_runs, plan.energy_window_s)
    finally:
        if counter is not None:
            counter.stop()
    return Run(
        warmup_runs=warmup_runs,
        times=times,
        energy_j=energy_j,
        energy_window_s=window_s,
        memory=meter.read_memory(),
        state=meter.state(),
        output=runner.output,
    )


class _Runner:
    """Runs the call and keeps its latest output, which is gone before the next call: two would count as memory."""

    def __init__(self, call: Callable[[], object], meter: Meter) -> None:
        self._call = call
        self._meter = meter
        self.output: object = None

    def run(self) -> CallTime:
        """Run it once, to its end."""
        self.output = None
        self.output, took = self._meter.time_call(self._call)
        return took

    def run_for(self, seconds: float) -> int:
        """Run it until a time is over; return how often that was."""
        deadline, runs = time.perf_counter() + seconds, 0
        while time.perf_counter() < deadline:
            self.run()
            runs += 1
        return runs


def _warm_up(runner: _Runner, plan: Plan, deadline_s: float) -> tuple[int, float, float]:
    """Returns how many calls there were, how long the last one took, and all but the first, s."""
    runner.run()
    runs, spent_s, call_s = 1, 0.0, 0.0
    while runs < max(plan.warmup_runs, _FEWEST_WARMUPS):
        if runs >= _FEWEST_WARMUPS and spent_s + call_s > plan.budget_s * _WARMUP_SHARE:
            break
        call_s = runner.run().wall_s
        spent_s += call_s
        runs += 1
        left_s = deadline_s - time.perf_counter()
        if _FEWEST_TIMED * call_s > left_s:
            raise TooSlowError(
                f"One call took {call_s:.3g} s, and {_FEWEST_TIMED} more would not end in the {left_s:.3g} s left."
            )
    return runs, call_s, spent_s


class _Window:
    """The window of the energy: opened before the timed calls, closed some calls after them."""

    def __init__(self, counter: EnergyCounter, runner: _Runner, *, expected_s: float) -> None:
        self._counter = counter
        self._runner = runner
        self._patience_s = LONGEST_TICK_S if expected_s < _LONG_WINDOW_S else 0.0
        self._opened_at = 0.0
        self._before_j: float | None = None

    def open(self) -> None:
        """Start where the counter moves, with the device at work."""
        self._counter.start()
        self._before_j, _ = self._run_to_tick()
        self._opened_at = time.perf_counter()

    def close(self, calls: int, shortest_s: float) -> tuple[float | None, float | None]:
        """Run on until the window is long enough and the counter moves.

        Args:
            calls: Calls made since it was opened.
            shortest_s: Its least length, s.

        Returns:
            Energy of one call, J, and the length of the window, s; None where the counter did not answer or stood.
        """
        calls += self._runner.run_for(self._opened_at + shortest_s - time.perf_counter())
        after_j, further_calls = self._run_to_tick()
        calls, length_s = calls + further_calls, time.perf_counter() - self._opened_at
        if after_j is None or self._before_j is None or after_j <= self._before_j:
            return None, None
        return (after_j - self._before_j) / calls, length_s

    def _run_to_tick(self) -> tuple[float | None, int]:
        """Run calls until the counter moves; return where it stands then, and how many calls there were."""
        before, deadline, calls = self._counter.read_j(), time.perf_counter() + self._patience_s, 0
        value = before
        while value == before and time.perf_counter() < deadline:
            calls += self._runner.run_for(_WORK_BETWEEN_READINGS_S)
            value = self._counter.read_j()
        return value, calls
