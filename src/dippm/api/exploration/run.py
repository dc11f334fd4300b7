"""The loop of an exploration: propose, predict, keep, learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from dippm.api.exploration.choices import Choices, key_of
from dippm.api.exploration.journal import Journal
from dippm.api.exploration.objectives import Limit
from dippm.api.exploration.search import Search
from dippm.api.exploration.trials import Outcome, Trial

__all__ = ["Predicts", "Run"]

# Points that are proposed at once, whatever the number of jobs: the way of the search must not depend on it.
_TOGETHER = 10


class Predicts(Protocol):
    """Predicts points, here or elsewhere."""

    def predict(self, points: Sequence[Choices], keep: Callable[[int, Outcome], None]) -> None:
        """Predict points; ``keep`` is called with the place and the outcome of each, in any order."""


class Run:
    """Asks a search for points and answers them, from what is written down where that is so.

    Args:
        search: Proposes points.
        workers: Predicts them.
        journal: What is written down; None for nothing.
        limits: What trials are judged by.
        total: How many trials are wanted.
        on_trial: Called after each that is predicted, with their number, their total and a remark.
    """

    def __init__(
        self,
        search: Search,
        workers: Predicts,
        journal: Journal | None,
        limits: Sequence[Limit],
        *,
        total: int,
        on_trial: Callable[[int, int, str], None] | None,
    ) -> None:
        self._search, self._workers, self._journal, self._limits = search, workers, journal, limits
        self._total, self._on_trial = total, on_trial
        self.trials: list[Trial] = []
        self.is_exhausted = False

    def go(self) -> None:
        """Go on until there are enough trials, or the search finds no new point."""
        known: set[str] = set()
        while len(self.trials) < self._total:
            points = self._search.propose(min(_TOGETHER, self._total - len(self.trials)), known)
            if not points:
                self.is_exhausted = True
                return
            keys = [key_of(point) for point in points]
            outcomes = self._answer(keys, points)
            new = [
                Trial.of(len(self.trials) + at, point, outcomes[key], self._limits)
                for at, (key, point) in enumerate(zip(keys, points, strict=True))
            ]
            self.trials += new
            self._search.learn(new)
            known.update(keys)

    def _answer(self, keys: Sequence[str], points: Sequence[Choices]) -> dict[str, Outcome]:
        """Outcomes of points by their keys: those written down, and the others predicted."""
        written = {} if self._journal is None else self._journal.known
        outcomes = {key: written[key] for key in keys if key in written}
        missing = [at for at, key in enumerate(keys) if key not in outcomes]

        def keep(place: int, outcome: Outcome) -> None:
            key = keys[missing[place]]
            outcomes[key] = outcome
            if self._journal is not None:
                self._journal.keep(key, outcome)
            self._show(len(self.trials) + len(outcomes), outcome)

        self._workers.predict([points[at] for at in missing], keep)
        return outcomes

    def _show(self, done: int, outcome: Outcome) -> None:
        if self._on_trial is not None:
            remark = (
                outcome.error_code or f"{outcome.values['latency_ms']:.3g} ms, {outcome.values['memory_mb']:.0f} MiB"
            )
            self._on_trial(done, self._total, remark)
