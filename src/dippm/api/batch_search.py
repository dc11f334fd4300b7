"""The largest batch that holds, from few predictions.

Memory grows nearly evenly with the batch, and not quite: the allocator works in segments, and what it holds beyond the
live tensors, the slack, goes up and down. The search finds a bracket by interpolation, then looks at larger batches. It
ends where none can hold, slack or not: live tensors at their peak are the largest of many straight lines, so that
past two batches they grow at least as fast as between them; and in any case after some stretches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dippm.api.needed_memory import needed_of
from dippm.errors import UnsupportedError
from dippm.predictors.prediction import Prediction

__all__ = ["LARGEST_BATCH", "BatchSearch"]

#: More samples in one call are taken for a slip.
LARGEST_BATCH = 2**24

_LOW, _HIGH = 0, 1
_SECOND_LOOK = 16
# How far past the batch that is found is looked at most: a fourth of it, at least so many.
_STRETCH = 4
# Of a longer stretch, so many batches next to it are looked at, and as many spread over the rest.
_CLOSELY = 8
_AT_ONCE = 4
# Kernels take a little longer for one batch and less for the next: near a bound on time some batch further on nearly
# always keeps it, and a search that followed each of them would go on for minutes and gain next to nothing.
_MOST_STRETCHES = 16
_INFINITE = float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trial:
    """One batch that was looked at.

    Args:
        needed_mb: Ends of the interval of what is needed.
        held_interval_mb: Ends of the interval of what is held.
        live_mb: The predicted memory without its slack.
        held_mb: The predicted memory.
        time_ms: The predicted time.
    """

    needed_mb: tuple[float, float]
    held_interval_mb: tuple[float, float]
    live_mb: float
    held_mb: float
    time_ms: float


_NO_END = (_INFINITE, _INFINITE)
_TOO_LARGE = _Trial(
    needed_mb=_NO_END, held_interval_mb=_NO_END, live_mb=_INFINITE, held_mb=_INFINITE, time_ms=_INFINITE
)


class BatchSearch:
    """Looks for the largest batch on one device; what it has looked at once it knows.

    Args:
        predict: Gives a prediction for each batch.
        capacity_mb: Memory that the device offers, MiB.
        time_bound_ms: Bound on the predicted time, or None.
    """

    def __init__(
        self, predict: Callable[[Sequence[int]], list[Prediction]], *, capacity_mb: float, time_bound_ms: float | None
    ) -> None:
        self._predict = predict
        self._capacity_mb = capacity_mb
        self._bound_ms = time_bound_ms
        self._trials: dict[int, _Trial] = {}

    def largest_certain(self) -> int:
        """Largest batch whose need of memory surely fits and whose time keeps the bound, 0 where none does."""
        return self._largest(_HIGH)

    def largest_possible(self) -> int:
        """Largest batch whose need of memory is not ruled out and whose time keeps the bound, 0 where all are."""
        return self._largest(_LOW)

    def is_bound_by_time(self, batch: int) -> bool:
        """Whether it is the time, and not the memory, that keeps the largest batch from being larger.

        Args:
            batch: The largest batch that was found.
        """
        if self._bound_ms is None:
            return False
        self._look_at([batch + 1])
        trial = self._trials[batch + 1]
        time, memory = trial.time_ms / self._bound_ms, trial.needed_mb[_HIGH] / self._capacity_mb
        # Both hold where the search did not go on for each batch that does: then what is nearer to its bound.
        return time > 1.0 or (memory <= 1.0 and time > memory)

    def _largest(self, end: int) -> int:
        best = self._bracket(end)
        for _ in range(_MOST_STRETCHES):
            if not 0 < best < LARGEST_BATCH:
                break
            further = self._look_beyond(best, end)
            if further == best:
                break
            best = further
        return best

    def _strain(self, batch: int, end: int) -> float:
        """What the batch asks for as a share of what there is: of memory or of time, whichever is scarcer."""
        trial = self._trials[batch]
        memory = trial.needed_mb[end] / self._capacity_mb
        return memory if self._bound_ms is None else max(memory, trial.time_ms / self._bound_ms)

    def _bracket(self, end: int) -> int:
        """A batch that holds while the next one does not."""
        self._look_at([1])
        if self._strain(1, end) > 1.0:
            return 0
        low, high = 1, LARGEST_BATCH + 1
        for batch in self._trials:
            if self._strain(batch, end) <= 1.0:
                low = max(low, batch)
        high = min((b for b in self._trials if b > low and self._strain(b, end) > 1.0), default=high)
        halving = False
        while high - low > 1:
            middle = self._halve(low, high) if halving else self._interpolate(low, high, end)
            width = high - low
            self._look_at([middle])
            if self._strain(middle, end) <= 1.0:
                low = middle
            else:
                high = middle
            # Interpolation that closes in from one side alone is slow; every second step then halves.
            halving = not halving and high - low > width / 2
        return low

    def _interpolate(self, low: int, high: int, end: int) -> int:
        """Where the strain would reach 1 on a straight line through two batches that were looked at."""
        if low == 1 and high > LARGEST_BATCH:
            return min(_SECOND_LOOK, LARGEST_BATCH)
        other = high if high in self._trials and self._trials[high] is not _TOO_LARGE else 1
        if other == low:
            return self._halve(low, high)
        growth = (self._strain(other, end) - self._strain(low, end)) / (other - low)
        if growth <= 0:
            return self._halve(low, high)
        guess = low + (1.0 - self._strain(low, end)) / growth
        if high > LARGEST_BATCH:
            # Past what is known: a little further, to have the answer between two batches.
            guess = max(guess * 1.02, low + 1)
        return int(min(max(guess, low + 1), high - 1))

    @staticmethod
    def _halve(low: int, high: int) -> int:
        """The middle, by factors while the batch is not known to a factor of two."""
        return min(2 * low, high - 1) if high > 4 * low else (low + high) // 2

    def _look_beyond(self, best: int, end: int) -> int:
        """The largest batch of the stretch past ``best`` that holds, or ``best``."""
        found = best
        stretch = _batches_beyond(best)
        for start in range(0, len(stretch), _AT_ONCE):
            chunk = stretch[start : start + _AT_ONCE]
            if self._is_past_all(best, chunk[0], end):
                break
            self._look_at(chunk)
            found = max([found, *(batch for batch in chunk if self._strain(batch, end) <= 1.0)])
        return found

    def _is_past_all(self, best: int, batch: int, end: int) -> bool:
        """Whether the live tensors alone, without any slack, rule out this batch and all larger ones."""
        before = max((known for known in self._trials if known < best), default=None)
        if before is None:
            return False
        near, far = self._trials[before], self._trials[best]
        live_mb = far.live_mb + (far.live_mb - near.live_mb) / (best - before) * (batch - best)
        # The ends of the interval lie on a straight line over the predicted memory, as weights are exact.
        one = self._trials[1]
        slope = (far.held_interval_mb[end] - one.held_interval_mb[end]) / max(far.held_mb - one.held_mb, 1.0)
        at_live = far.held_interval_mb[end] + slope * (far.live_mb - far.held_mb)
        # Kernels that make no copies need less than what is alive with those that do, which then rules nothing out.
        return far.needed_mb[end] >= at_live and at_live + slope * (live_mb - far.live_mb) > self._capacity_mb

    def _look_at(self, batches: Sequence[int]) -> None:
        missing = [batch for batch in batches if batch not in self._trials]
        if not missing:
            return
        try:
            predictions = self._predict(missing)
        except UnsupportedError as exc:
            if exc.code != "graph.too_large":
                raise
            self._trials.update(dict.fromkeys(missing, _TOO_LARGE))
            return
        for batch, prediction in zip(missing, predictions, strict=True):
            held_mb = prediction.memory_mb or 0.0
            self._trials[batch] = _Trial(
                needed_mb=needed_of(prediction),
                held_interval_mb=prediction.intervals["memory_mb"],
                live_mb=held_mb - prediction.memory_parts_mb.get("slack", 0.0),
                held_mb=held_mb,
                time_ms=prediction.latency_ms,
            )


def _batches_beyond(batch: int) -> list[int]:
    """Larger batches to look at, in order: all of a stretch, or its beginning and a sample of its rest."""
    end = min(batch + max(batch // _STRETCH, _STRETCH), LARGEST_BATCH)
    near = min(batch + _CLOSELY, end)
    step = max((end - near) // _CLOSELY, 1)
    return [*range(batch + 1, near + 1), *range(near + step, end + 1, step)]
