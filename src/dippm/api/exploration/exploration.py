"""What an exploration found."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dippm.api.exploration.choices import count_points
from dippm.api.exploration.front import MOST_COMPARED, choose_front, find_rivals
from dippm.api.exploration.merging import merge_texts
from dippm.api.exploration.objectives import Limit, Objective, round_metric
from dippm.api.exploration.space import Space
from dippm.api.exploration.trials import Trial

__all__ = ["Exploration"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Exploration:
    """All trials and the best trade-offs among them.

    Args:
        space: What was searched.
        objectives: What was weighed.
        limits: What had to be kept to.
        plan: All that decided the trials, as plain values: device, batch, conditions, sampler, seed, versions.
        trials: Every trial, in the order of the search.
        front: Those that keep to all limits and that no other dominates, best in the first objective first. A point's
            number is its place here, from 1.
        rivals: For each point of the front the places of those that may in truth dominate it: within the intervals
            they could be at least as good in every objective; none where the front is too large to tell.
        is_exhausted: Whether the search ended before its time, for want of new points.
        notes: What could not be gone on with.
        files: What was written, none without a folder.
    """

    space: Space
    objectives: tuple[Objective, ...]
    limits: tuple[Limit, ...]
    plan: Mapping[str, Any]
    trials: tuple[Trial, ...]
    front: tuple[Trial, ...]
    rivals: tuple[tuple[int, ...], ...]
    is_exhausted: bool = False
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    @classmethod
    def of(
        cls,
        trials: Sequence[Trial],
        *,
        space: Space,
        objectives: tuple[Objective, ...],
        limits: tuple[Limit, ...],
        plan: Mapping[str, Any],
        is_exhausted: bool,
        notes: tuple[str, ...] = (),
    ) -> Exploration:
        """What trials show."""
        front = choose_front(trials, objectives)
        return cls(
            space=space,
            objectives=objectives,
            limits=limits,
            plan=plan,
            trials=tuple(trials),
            front=front,
            rivals=find_rivals(front, objectives),
            is_exhausted=is_exhausted,
            notes=notes,
        )

    @property
    def metrics(self) -> tuple[str, ...]:
        """Objectives, and the latency and the memory where they are none."""
        named = [each.metric for each in self.objectives]
        has_time = bool({"latency_ms", "step_time_ms"} & set(named))
        return tuple(dict.fromkeys([*named, *(() if has_time else ("latency_ms",)), "memory_mb"]))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the front cannot vouch for, and what did not go as asked."""
        notes = list(self.notes)
        if self.is_exhausted:
            notes.append(f"The search ended after {len(self.trials)} trials: it found no point that was not tried.")
        if not self.front:
            notes.append(f"No trial keeps to all limits.{self._nearest_miss()}")
        if len(self.front) > MOST_COMPARED:
            notes.append(f"Rivals are not told: the front has more than {MOST_COMPARED:,} points.")
        failed = Counter(trial.outcome.error_code for trial in self.trials if trial.has_failed)
        for code, count in failed.most_common():
            first = next(trial.outcome.error for trial in self.trials if trial.outcome.error_code == code)
            notes.append(f"{count} of {len(self.trials)} trials failed with {code}, the first: {first:.300}")
        told = [text for trial in self.front for text in trial.outcome.warnings]
        notes += [f"{text} ({count} of {len(self.front)} on the front)" for text, count in merge_texts(told)]
        return tuple(notes)

    def _nearest_miss(self) -> str:
        """Which trial comes nearest to the limits, and what keeps it from them."""
        judged = [trial for trial in self.trials if not trial.has_failed]
        if not judged:
            return ""
        nearest = min(judged, key=lambda trial: sum(max(each, 0.0) for each in trial.excess))
        broken = []
        for limit, excess in zip(self.limits, nearest.excess, strict=True):
            if excess > 0:
                low, high = nearest.outcome.ends(limit.metric)
                bad_end = round_metric(limit.metric, low if limit.is_least else high)
                shown = f"{bad_end:,}" if isinstance(bad_end, int) else f"{bad_end:,g}"
                broken.append(f"{limit.metric} {shown} at its bad end against {limit}")
        return f" The nearest, trial {nearest.number}, has {', '.join(broken)}."

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON; :func:`dippm.rebuild` reads them."""
        return {
            "space": {
                "path": None if self.space.path is None else os.path.abspath(self.space.path),
                "sha256": self.plan["space"],
                "points": _as_count(count_points(self.space.choices)),
            },
            **{name: value for name, value in self.plan.items() if name not in {"schema", "space"}},
            "tried": len(self.trials),
            "failed": sum(trial.has_failed for trial in self.trials),
            "infeasible": sum(not trial.is_feasible and not trial.has_failed for trial in self.trials),
            "warnings": list(self.warnings),
            "front": [self._point(at) for at in range(len(self.front))],
        }

    def _point(self, at: int) -> dict[str, object]:
        trial, outcome = self.front[at], self.front[at].outcome
        return {
            "number": at + 1,
            "trial": trial.number,
            "choices": dict(trial.choices),
            **{name: round_metric(name, value) for name, value in outcome.values.items()},
            "mig": outcome.mig or None,
            "no_slice": None if outcome.mig else outcome.no_slice,
            "intervals": {name: [round_metric(name, end) for end in ends] for name, ends in outcome.intervals.items()},
            "rivals": [other + 1 for other in self.rivals[at]],
        }


def _as_count(points: float) -> int | float | None:
    """A number of points as JSON has it: whole as far as it is exact, None where there is no end of them."""
    if math.isinf(points):
        return None
    return int(points) if points <= 2**53 else points
