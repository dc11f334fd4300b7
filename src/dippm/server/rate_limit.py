"""How often one client may ask: a token bucket for each."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["RateLimit"]

_MOST_CLIENTS = 10_000
_BURST_S = 2.0


class RateLimit:
    """Lets each client make so many requests per second, and two seconds' worth at once.

    Args:
        per_s: Requests per second; 0 for any number.
        clock: Seconds that never run backwards.
    """

    def __init__(self, *, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = max(1.0, _BURST_S * per_s)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> float:
        """Count one request.

        Args:
            client: Who asks.

        Returns:
            0 where it is allowed, else seconds until the next one is.
        """
        if self._per_s <= 0:
            return 0.0
        now = self._clock()
        level, then = self._buckets.pop(client, (self._burst, now))
        level = min(self._burst, level + (now - then) * self._per_s)
        is_allowed = level >= 1.0
        # The client that has not asked for longest is forgotten first: its bucket is the fullest.
        self._buckets[client] = (level - 1.0 if is_allowed else level, now)
        if len(self._buckets) > _MOST_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if is_allowed else (1.0 - level) / self._per_s
