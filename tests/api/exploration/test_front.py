"""Dominance."""

from __future__ import annotations

import time

import numpy as np
import pytest

from dippm.api.exploration.front import MOST_COMPARED, choose_front, find_rivals, is_not_dominated
from dippm.api.exploration.objectives import Limit, Objective
from dippm.api.exploration.trials import Outcome, Trial

LATENCY, SCORE = Objective(metric="latency_ms"), Objective(metric="score", is_maximised=True)


def _trial(number: int, latency: float, score: float, half_width: float = 0.0, limits: tuple[Limit, ...] = ()) -> Trial:
    outcome = Outcome(
        values={"latency_ms": latency, "score": score},
        intervals={"latency_ms": (latency - half_width, latency + half_width)},
    )
    return Trial.of(number, {"n": number}, outcome, limits)


@pytest.mark.parametrize("columns", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [0, 1, 80, 700])
def test_against_the_definition(rows: int, columns: int) -> None:
    costs = np.random.default_rng(3).integers(0, 2 + rows // 16, size=(rows, columns)).astype(float)
    expected = [not ((costs <= row).all(axis=1) & (costs < row).any(axis=1)).any() for row in costs]
    assert is_not_dominated(costs).tolist() == expected


def test_as_many_points_as_an_exploration_may_have() -> None:
    share = np.random.default_rng(4).random(100_000)
    started_s = time.process_time()
    assert is_not_dominated(np.stack([share, 1.0 - share], axis=1)).all()
    assert time.process_time() - started_s < 3


def test_the_front_keeps_ties_and_leaves_out_what_breaks_limits_or_failed() -> None:
    limits = (Limit(metric="latency_ms", bound=10.0),)
    trials = [
        _trial(0, 5.0, 1.0, limits=limits),
        _trial(1, 5.0, 1.0, limits=limits),
        _trial(2, 4.0, 0.5, limits=limits),
        _trial(3, 5.5, 1.0, limits=limits),
        _trial(4, 9.0, 9.0, half_width=2.0, limits=limits),
        Trial.of(5, {"n": 5}, Outcome(error_code="x", error="y"), limits),
    ]
    assert [trial.number for trial in choose_front(trials, (LATENCY, SCORE))] == [2, 0, 1]
    assert not trials[4].is_feasible
    assert trials[5].has_failed
    assert choose_front(trials[4:], (LATENCY, SCORE)) == ()


def test_rivals_are_those_that_may_dominate_within_their_intervals() -> None:
    front = [_trial(0, 4.0, 1.0, 1.0), _trial(1, 5.0, 2.0, 1.0), _trial(2, 9.0, 3.0, 1.0)]
    # The second may be as fast as the first and has more score; the third is too slow; less score never makes a rival.
    assert find_rivals(front, (LATENCY, SCORE)) == ((1,), (), ())
    assert find_rivals([], (LATENCY, SCORE)) == ()


def test_rivals_against_the_definition_and_none_on_a_front_that_is_too_large() -> None:
    generator = np.random.default_rng(5)
    front = [_trial(at, float(at), float(at), generator.uniform(0, 30)) for at in range(300)]
    ends = [trial.outcome.ends("latency_ms") for trial in front]
    assert find_rivals(front, (LATENCY, SCORE)) == tuple(
        tuple(other for other in range(at + 1, 300) if ends[other][0] <= ends[at][1]) for at in range(300)
    )
    large = [_trial(at, float(at), float(at), 1e6) for at in range(MOST_COMPARED + 1)]
    assert set(find_rivals(large, (LATENCY, SCORE))) == {()}
