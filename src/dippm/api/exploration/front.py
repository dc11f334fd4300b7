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

__all__ = ["MOST_COMPARED", "choose_front", "costs_of", "find_rivals", "is_not_dominated"]

MOST_COMPARED = 2000
"""Points of a front that are compared with each other for rivals: there may be as many pairs as the square of it."""

# Rows whose dominance is found at once, and the most pairs that are in memory for it.
_BLOCK = 256
_COMPARED = 2**22


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
    # By the first column, ties by the next: no row is dominated by one after it.
    order = np.lexsort(costs.T[::-1])
    best = np.zeros(len(costs), dtype=bool)
    best[order] = _is_best_of_two(costs[order]) if costs.shape[1] == 2 else _is_best(costs[order])
    return best


def _is_best_of_two(ordered: FloatArray) -> npt.NDArray[np.bool_]:
    """The same of ordered rows with two columns: the second is less than in all rows before, or the row is repeated."""
    is_less = np.ones(len(ordered), dtype=bool)
    is_less[1:] = ordered[1:, 1] < np.minimum.accumulate(ordered[:-1, 1])
    is_repeated = np.zeros(len(ordered), dtype=bool)
    is_repeated[1:] = (ordered[1:] == ordered[:-1]).all(axis=1)
    # A repeated row is what the first one like it is.
    first = np.maximum.accumulate(np.where(is_repeated, 0, np.arange(len(ordered))))
    return np.asarray(is_less[first])


def _is_best(ordered: FloatArray) -> npt.NDArray[np.bool_]:
    """The same of ordered rows with any columns: what the rows of a block dominate among all after it is left out."""
    best = np.zeros(len(ordered), dtype=bool)
    rest = np.arange(len(ordered))
    while len(rest):
        size = max(1, min(_BLOCK, _COMPARED // len(rest)))
        block = rest[:size]
        block = block[~_are_dominated(ordered[block], ordered[block])]
        best[block] = True
        rest = rest[size:]
        rest = rest[~_are_dominated(ordered[rest], ordered[block])]
    return best


def _are_dominated(costs: FloatArray, others: FloatArray) -> npt.NDArray[np.bool_]:
    """Which rows some other row dominates."""
    reached = np.ones((len(others), len(costs)), dtype=bool)
    is_better = np.zeros((len(others), len(costs)), dtype=bool)
    for column, other in zip(costs.T, others.T, strict=True):
        reached &= column >= other[:, None]
        is_better |= column > other[:, None]
    return np.asarray((reached & is_better).any(axis=0))


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
        Places in ``front``, for each of its points; none at all where there are more than :data:`MOST_COMPARED`.
    """
    if len(front) > MOST_COMPARED:
        return ((),) * len(front)
    may_dominate = ~np.eye(len(front), dtype=bool)
    for each in objectives:
        low, high = np.array([trial.outcome.ends(each.metric) for trial in front], dtype=np.float64).reshape(-1, 2).T
        # Less is better: what is maximised is turned, and so are its ends.
        best, worst = (-high, -low) if each.is_maximised else (low, high)
        may_dominate &= best[None, :] <= worst[:, None]
    return tuple(tuple(np.flatnonzero(row).tolist()) for row in may_dominate)
