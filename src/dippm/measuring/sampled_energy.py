"""Energy as the integral of sampled power, for devices without an energy counter."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["SampledEnergy"]

_PERIOD_S = 0.02


class SampledEnergy:
    """Samples power in a thread while a window is open; the energy grows with each sample.

    Args:
        power_w: Reads the power now, W, or None where that fails.
        source: Name of the source.
    """

    def __init__(self, power_w: Callable[[], float | None], *, source: str) -> None:
        self.source = source
        self._power_w = power_w
        self._energy_j: float | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin a window from 0 J."""
        self._energy_j = 0.0
        self._stop.clear()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def read_j(self) -> float | None:
        """Energy since the window began, up to the latest sample, J; None where a sample failed."""
        return self._energy_j

    def stop(self) -> None:
        """End the window."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def _sample(self) -> None:
        power, moment = self._power_w(), time.perf_counter()
        while not self._stop.wait(_PERIOD_S):
            next_power, next_moment = self._power_w(), time.perf_counter()
            if power is None or next_power is None or self._energy_j is None:
                self._energy_j = None
                return
            self._energy_j += (power + next_power) / 2 * (next_moment - moment)
            power, moment = next_power, next_moment
