"""What all searches promise: new points, each once, the same ones for the same seed."""

from __future__ import annotations

import pytest

from dippm.api.exploration.choices import Choice, Choices, draw, key_of, parse_choices
from dippm.api.exploration.objectives import parse_limits, parse_objectives
from dippm.api.exploration.search import Sampler, Search, make_search, parse_sampler
from dippm.api.exploration.trials import Outcome, Trial
from dippm.errors import UsageError

OBJECTIVES = parse_objectives("latency,params:max", is_training=False, has_score=False)
LIMITS = parse_limits(["latency=300"], is_training=False, has_score=False)
CHOICES = parse_choices(
    {
        **{f"size{number}": range(1, 9) for number in range(5)},
        "kind": ["a", "b", "c"],
        "more": {"from": 1, "to": 4, "if": {"kind": ["b", "c"]}},
        "share": {"from": 0.0, "to": 1.0},
    }
)


def judge(point: Choices) -> Outcome:
    """A toy whose best trade-offs are those of one kind and no share."""
    sizes = [int(point[f"size{number}"]) for number in range(5)]
    if sizes[0] == 3:
        return Outcome(error_code="toy.three", error="three")
    waste = {"a": 1.0, "b": 1.3, "c": 2.0}[str(point["kind"])] * (1.0 + float(point["share"]))
    latency = waste * (10 + sizes[0] * sizes[1] + 3 * sizes[2] * sizes[3] + sizes[4])
    return Outcome(values={"latency_ms": latency, "params": sum(size**2 for size in sizes)})


def go(search: Search, count: int, together: int = 10) -> list[Trial]:
    trials: list[Trial] = []
    while len(trials) < count:
        points = search.propose(together, {trial.key for trial in trials})
        if not points:
            break
        new = [Trial.of(len(trials) + at, point, judge(point), LIMITS) for at, point in enumerate(points)]
        trials += new
        search.learn(new)
    return trials


def make(sampler: Sampler, seed: int = 0, choices: tuple[Choice, ...] = CHOICES) -> Search:
    return make_search(sampler, choices, OBJECTIVES, LIMITS, seed=seed)


@pytest.mark.parametrize("sampler", Sampler)
def test_new_points_of_the_space_and_the_same_for_the_same_seed(sampler: Sampler) -> None:
    trials = go(make(sampler), 60)
    assert len({trial.key for trial in trials}) == len(trials) == 60
    for trial in trials:
        kept = draw(CHOICES, None, trial.choices)  # type: ignore[arg-type]  # nothing is left to chance
        assert kept == trial.choices
    again = go(make(sampler), 40)
    assert [trial.key for trial in again] == [trial.key for trial in trials[:40]]
    assert go(make(sampler, seed=1), 10)[-1].key != trials[9].key


@pytest.mark.parametrize("sampler", Sampler)
def test_a_small_space_is_tried_to_its_last_point(sampler: Sampler) -> None:
    small = parse_choices(
        {
            **{f"size{number}": [1, 2] for number in range(3)},
            "size3": [1],
            "size4": [1],
            "kind": ["a"],
            "share": [0.0, 0.5],
        }
    )
    trials = go(make(sampler, choices=small), 100)
    assert len(trials) == len({key_of(trial.choices) for trial in trials}) == 16


def test_names() -> None:
    assert parse_sampler("tpe") is Sampler.TPE
    with pytest.raises(UsageError, match="surrogate, nsga2, tpe, random") as caught:
        parse_sampler("best")
    assert caught.value.code == "explore.sampler"
