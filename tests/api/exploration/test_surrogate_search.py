"""The default search is worth its guesses."""

from __future__ import annotations

import numpy as np

from dippm.api.exploration.choices import Choices, draw, parse_choices
from dippm.api.exploration.front import costs_of, is_not_dominated
from dippm.api.exploration.objectives import Limit, parse_limits, parse_objectives
from dippm.api.exploration.surrogate_search import SurrogateSearch
from dippm.api.exploration.trials import Outcome, Trial

CHOICES = parse_choices(
    {
        **{f"depth{stage}": range(1, 9) for stage in range(3)},
        **{f"width{stage}": range(1, 17) for stage in range(3)},
        **{f"is_wasteful{stage}": [False, True] for stage in range(3)},
    }
)
OBJECTIVES = parse_objectives("latency,params:max", is_training=False, has_score=False)


def judge(point: Choices) -> Outcome:
    """Costs that add up over stages, as those of models do, some of them for nothing."""
    layers = [(int(point[f"depth{stage}"]), int(point[f"width{stage}"])) for stage in range(3)]
    waste = [1.5 if point[f"is_wasteful{stage}"] else 1.0 for stage in range(3)]
    latency = sum(share * depth * (2.0 + width) for share, (depth, width) in zip(waste, layers, strict=True))
    return Outcome(values={"latency_ms": latency, "params": sum(depth * width**2 for depth, width in layers)})


def search(limits: tuple[Limit, ...], count: int) -> list[Trial]:
    made = SurrogateSearch(CHOICES, OBJECTIVES, seed=0)
    trials: list[Trial] = []
    while len(trials) < count:
        points = made.propose(10, {trial.key for trial in trials})
        trials += (new := [Trial.of(len(trials) + at, point, judge(point), limits) for at, point in enumerate(points)])
        made.learn(new)
    return trials


def _share_dominated(trials: list[Trial], samples: list[Trial]) -> float:
    front = costs_of(trials, OBJECTIVES)
    front = front[is_not_dominated(front)]
    return float(np.mean([(front <= sample).all(axis=1).any() for sample in costs_of(samples, OBJECTIVES)]))


def test_its_front_is_worth_more_than_that_of_ten_times_as_many_random_points() -> None:
    generator = np.random.default_rng(9)
    drawn = [Trial.of(0, point, judge(point), ()) for point in (draw(CHOICES, generator) for _ in range(1600))]
    found = _share_dominated(search((), 80), drawn[:800])
    assert found > 0.97
    assert found > _share_dominated(drawn[800:], drawn[:800]) + 0.01


def test_it_finds_its_way_to_a_small_corner_that_keeps_to_the_limits() -> None:
    limits = parse_limits(["latency=40"], is_training=False, has_score=False)
    generator = np.random.default_rng(9)
    kept_by_chance = np.mean(
        [judge(draw(CHOICES, generator)).values["latency_ms"] <= 40 for _ in range(2000)]
    )  # fmt: skip
    trials = search(limits, 80)
    assert kept_by_chance < 0.05
    assert np.mean([trial.is_feasible for trial in trials[30:]]) > 0.5


def test_both_ends_of_the_space_come_first() -> None:
    first, second = SurrogateSearch(CHOICES, OBJECTIVES, seed=5).propose(10, set())[:2]
    assert judge(first).values["params"] == 3
    assert judge(second).values["params"] == 3 * 8 * 16**2
