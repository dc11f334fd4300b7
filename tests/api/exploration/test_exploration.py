"""What trials add up to: the front, what is told about it, and its form as plain values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dippm.api.exploration.choices import Choices
from dippm.api.exploration.exploration import Exploration
from dippm.api.exploration.front import MOST_COMPARED
from dippm.api.exploration.objectives import Limit, Objective
from dippm.api.exploration.space import Space
from dippm.api.exploration.trials import Outcome, Trial

LATENCY, MEMORY = Objective(metric="latency_ms"), Objective(metric="memory_mb")
PARAMS = Objective(metric="params", is_maximised=True)
SPACE = Space.of({"width": [8, 16, 24]}, lambda _: "timm:resnet18")
PLAN = {"schema": 2, "space": "0f08", "device": "A100", "seed": 3}


def figures(latency: float, params: int, half_width: float = 0.0, **changes: object) -> Outcome:
    given = {
        "values": {"latency_ms": latency, "memory_mb": 100.0, "params": params},
        "intervals": {"latency_ms": (latency - half_width, latency + half_width), "memory_mb": (90.0, 130.0)},
        **changes,
    }
    return Outcome(**given)  # type: ignore[arg-type]


def explored(
    *outcomes: Outcome,
    objectives: tuple[Objective, ...] = (LATENCY, PARAMS),
    limits: tuple[Limit, ...] = (),
    space: Space = SPACE,
    is_exhausted: bool = False,
    notes: tuple[str, ...] = (),
) -> Exploration:
    points: list[Choices] = [{"width": 8 * number} for number in range(len(outcomes))]
    trials = [
        Trial.of(number, point, each, limits) for number, (point, each) in enumerate(zip(points, outcomes, strict=True))
    ]
    return Exploration.of(
        trials, space=space, objectives=objectives, limits=limits, plan=PLAN, is_exhausted=is_exhausted, notes=notes
    )


def test_the_front_is_that_of_the_trials_and_rivals_are_places_in_it() -> None:
    # The third is slower than the second and smaller; the first and the second may change places.
    found = explored(figures(5.0, 30, 1.0), figures(4.0, 20, 1.0), figures(4.5, 10))
    assert [trial.number for trial in found.trials] == [0, 1, 2]
    assert [trial.number for trial in found.front] == [1, 0]
    assert found.rivals == ((1,), ())
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("objectives", "metrics"),
    [
        ((PARAMS,), ("params", "latency_ms", "memory_mb")),
        ((MEMORY, LATENCY), ("memory_mb", "latency_ms")),
        ((Objective(metric="step_time_ms"),), ("step_time_ms", "memory_mb")),
    ],
)
def test_time_and_memory_are_told_beside_the_objectives(
    objectives: tuple[Objective, ...], metrics: tuple[str, ...]
) -> None:
    found = Exploration.of(
        [], space=SPACE, objectives=objectives, limits=(), plan=PLAN, is_exhausted=False
    )  # fmt: skip
    assert found.metrics == metrics


def test_what_went_wrong_is_told_the_most_frequent_first_and_the_front_s_warnings_once() -> None:
    found = explored(
        Outcome(error_code="worker.memory", error="m" * 400),
        Outcome(error_code="internal", error="the first"),
        Outcome(error_code="internal", error="the second"),
        figures(4.0, 20, warnings=("3 operators are unknown.",)),
        figures(5.0, 30, warnings=("12 operators are unknown.", "Its device is new.")),
        figures(6.0, 10, warnings=("It is not on the front.",)),
        is_exhausted=True,
        notes=("A line is damaged.",),
    )
    assert found.warnings == (
        "A line is damaged.",
        "The search ended after 6 trials: it found no point that was not tried.",
        "2 of 6 trials failed with internal, the first: the first",
        f"1 of 6 trials failed with worker.memory, the first: {'m' * 300}",
        "3 to 12 operators are unknown. (2 of 2 on the front)",
        "Its device is new. (1 of 2 on the front)",
    )


def test_the_nearest_miss_is_that_of_the_least_excess_and_names_the_limits_it_breaks() -> None:
    limits = (
        Limit(metric="latency_ms", bound=4.0),
        Limit(metric="params", bound=1000.0, is_least=True),
        Limit(metric="memory_mb", bound=200.0),
    )
    # 50 % too slow, and how far it keeps to the other limits does not make up for it; 75 % too small; 25 % and 10 %.
    found = explored(figures(6.0, 10**6), figures(1.0, 250), figures(4.5, 900, 0.5), limits=limits)
    assert found.front == ()
    assert found.warnings == (
        "No trial keeps to all limits. The nearest, trial 2, has latency_ms 5 at its bad end against latency_ms<=4, "
        "params 900 at its bad end against params>=1000.",
    )


def test_a_least_is_compared_with_the_low_end() -> None:
    found = explored(figures(2500.0, 1, 500.0), limits=(Limit(metric="latency_ms", bound=4000.0, is_least=True),))
    assert "has latency_ms 2,000 at its bad end against latency_ms>=4000." in found.warnings[0]


def test_where_all_failed_nothing_is_near() -> None:
    found = explored(Outcome(error_code="internal", error="no"), limits=(Limit(metric="latency_ms", bound=1.0),))
    assert found.warnings[0] == "No trial keeps to all limits."


def test_a_front_too_large_for_rivals_says_so() -> None:
    many = [figures(float(number), number, 5.0) for number in range(MOST_COMPARED + 1)]
    assert [f"more than {MOST_COMPARED:,} points" in text for text in explored(*many).warnings] == [True]
    assert explored(*many[1:]).warnings == ()


def test_plain_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space = Space(choices=SPACE.choices, build=SPACE.build, path=Path("cells.py"))
    found = explored(
        figures(5.0, 30, 1.0, mig="1g.5gb"),
        figures(4.00049, 20, 1.0, no_slice="no MIG"),
        figures(4.5, 10),
        figures(9.0, 40),
        Outcome(error_code="internal", error="no"),
        limits=(Limit(metric="latency_ms", bound=8.0),),
        space=space,
    )
    values = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert values == {
        "space": {"path": str(tmp_path / "cells.py"), "sha256": "0f08", "points": 3},
        "device": "A100",
        "seed": 3,
        "tried": 5,
        "failed": 1,
        "infeasible": 1,
        "warnings": ["1 of 5 trials failed with internal, the first: no"],
        "front": [
            {
                "number": 1,
                "trial": 1,
                "choices": {"width": 8},
                "latency_ms": 4.0,  # four digits are told of what is predicted
                "memory_mb": 100.0,
                "params": 20,
                "mig": None,
                "no_slice": "no MIG",
                "intervals": {"latency_ms": [3.0, 5.0], "memory_mb": [90.0, 130.0]},
                "rivals": [2],
            },
            {
                "number": 2,
                "trial": 0,
                "choices": {"width": 0},
                "latency_ms": 5.0,
                "memory_mb": 100.0,
                "params": 30,
                "mig": "1g.5gb",
                "no_slice": None,
                "intervals": {"latency_ms": [4.0, 6.0], "memory_mb": [90.0, 130.0]},
                "rivals": [],
            },
        ],
    }


@pytest.mark.parametrize(
    ("choices", "points"),
    [
        ({f"has_{number}": [False, True] for number in range(53)}, 2**53),
        ({f"has_{number}": [False, True] for number in range(54)}, 2.0**54),
        ({"share": {"from": 0.0, "to": 1.0}}, None),
    ],
)
def test_points_are_counted_whole_as_far_as_that_is_exact(choices: dict[str, object], points: float | None) -> None:
    described = explored(space=Space.of(choices, lambda _: "timm:resnet18")).to_dict()["space"]
    assert isinstance(described, dict)
    assert described["path"] is None
    assert (described["points"], type(described["points"])) == (points, type(points))
