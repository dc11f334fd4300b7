"""Which points are the best trade-offs, how much they leave behind, and which of them are not really ordered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dippm.api.exploration.objectives import Objective
from dippm.api.exploration.trials import Trial

if TYPE_CHECKING:
    FloatArray = npt.NDArray[np.float64]

__all__ = ["choose_front", "costs_of", "find_rivals", "is_not_dominated"]


def costs_of(trials: Sequence[Trial], objectives: Sequence[Objective]) -> FloatArray:
    """What trials cost, less being better in every column.

    Shapes:
        returned: [trials, objectives].
    """
    return np.array([trial.costs(objectives) for trial in trials], dtype=np.float64).reshape(-1, len(objectives))


def is_not_dominated(costs: FloatArray) -> npt.NDArray[np.bool_]:
    """Which rows no other row is better than in one column and at least as good as in all others.

    Shapes:
        costs: [n, columns], less is better; returned: [n].
    """
    best = np.ones(len(costs), dtype=bool)
    for at, row in enumerate(costs):
        if best[at]:
            # What this row dominates cannot be on the front, and dominates nothing that this row does not.
            best &= ~((costs >= row).all(axis=1) & (costs > row).any(axis=1))
    return best


def choose_front(trials: Sequence[Trial], objectives: Sequence[Objective]) -> tuple[Trial, ...]:
    """The trials that keep to all limits and that none of the others dominates, best in the first objective first."""
    feasible = [trial for trial in trials if trial.is_feasible]
    if not feasible:
        return ()
    costs = costs_of(feasible, objectives)
    chosen = [trial for trial, is_best in zip(feasible, is_not_dominated(costs), strict=True) if is_best]
    return tuple(sorted(chosen, key=lambda trial: (trial.costs(objectives), trial.number)))


def find_rivals(front: Sequence[Trial], objectives: Sequence[Objective]) -> tuple[tuple[int, ...], ...]:
    """For each point the others that may in truth dominate it.

    A rival could be at least as good in every objective without any value leaving its interval. Metrics without an
    interval are known and are compared as they are.

    Returns:
        Places in ``front``, for each of its points.
    """
    ends = np.array([[trial.outcome.ends(each.metric) for each in objectives] for trial in front], dtype=np.float64)
    # Less is better: what is maximised is turned, and so are its ends.
    turned = [
        (-ends[:, at, ::-1] if each.is_maximised else ends[:, at]) for at, each in enumerate(objectives) if len(front)
    ]
    return tuple(
        tuple(
            other
            for other in range(len(front))
            if other != at and all(column[other, 0] <= column[at, 1] for column in turned)
        )
        for at in range(len(front))
    )
