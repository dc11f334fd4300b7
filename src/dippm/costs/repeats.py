"""Stretches of memory events that repeat themselves, as those of equal layers do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray

__all__ = ["Repeat", "find_repeats"]

# Longer layers than this many events are not looked for: the search takes time in proportion.
_LONGEST_PERIOD = 256
# Two periods are always followed, to see that the second ends as the first did.
_LEAST_PERIODS = 3


# What comparing the ends of two periods costs, in events.
_WORTHWHILE = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeat:
    """From ``start`` to ``stop`` every event is like the one a period before it.

    Args:
        start: First event of the first period.
        stop: Behind the last event, which need not end a period.
        period: Events of a period.
        reach: Most events between taking a piece and giving it back, both counted once, of the pieces that are given
            back in the stretch; at most two periods.
    """

    start: int
    stop: int
    period: int
    reach: int


def find_repeats(events: IndexArray, kinds: IndexArray) -> tuple[Repeat, ...]:
    """Disjoint stretches of at least three equal periods, in their order; those that save most are taken first.

    Takes time linear in the events.

    Args:
        events: The number of a piece, from 1, where it is taken; its negative where it is given back; 0 where some
            piece is taken and given back at once.
        kinds: What tells pieces of different sizes apart, 0 or more.

    Shapes:
        events, kinds: [n].
    """
    codes = _codes(events, kinds)
    count = len(codes)
    found: list[tuple[int, int, int]] = []
    for period in range(1, min(_LONGEST_PERIOD, count // _LEAST_PERIODS) + 1):
        differs_at = codes[period:] != codes[:-period]
        # Most periods have nowhere near enough equal elements for one stretch that is worth its while.
        if count - period - np.count_nonzero(differs_at) < period + max(period, _WORTHWHILE):
            continue
        differs = np.flatnonzero(differs_at)
        edges = np.concatenate([[-1], differs, [count - period]])
        # Of a run of equal elements the first period only leads to what is compared with the second.
        saved = np.diff(edges) - 1 - period
        runs = np.flatnonzero((saved >= period) & (saved >= _WORTHWHILE)).tolist()
        found += [(int(saved[run]), int(edges[run]) + 1, period) for run in runs]
    chosen: list[Repeat] = []
    for saved_events, start, period in sorted(found, key=lambda each: (-each[0], each[1:])):
        stop = start + saved_events + 2 * period
        reach = int(-codes[start:stop].min())
        if reach <= 2 * period and all(stop <= other.start or other.stop <= start for other in chosen):
            chosen.append(Repeat(start=start, stop=stop, period=period, reach=max(reach, 0)))
    return tuple(sorted(chosen, key=lambda repeat: repeat.start))


def _codes(events: IndexArray, kinds: IndexArray) -> npt.NDArray[np.int32]:
    """Equal for events that are alike: same size taken, same size touched, or given back as long after it was taken."""
    # Half as many bytes to compare as in whole numbers of the usual size.
    codes: npt.NDArray[np.int32] = (2 * kinds + (events == 0)).astype(np.int32)
    # A piece is taken and given back in turns: what stands before a give among its piece's events is the take.
    piece = np.abs(events)
    order = np.argsort(piece, kind="stable")
    is_given = np.flatnonzero(events[order] < 0)
    given, taken = order[is_given], order[is_given - 1]
    codes[given] = taken - given
    return codes
