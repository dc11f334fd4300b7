"""Optuna's samplers."""

from __future__ import annotations

import logging
import sys

import pytest

from dippm.api.exploration.choices import key_of, parse_choices
from dippm.api.exploration.objectives import parse_objectives
from dippm.api.exploration.optuna_search import OptunaSearch
from dippm.api.exploration.search import Sampler
from dippm.api.exploration.trials import Outcome, Trial
from dippm.errors import MissingExtraError

OBJECTIVES = parse_objectives("latency", is_training=False, has_score=False)
CHOICES = parse_choices({"size": range(1, 400), "kind": ["a", "b"]})


def test_the_sampler_learns_what_it_is_told() -> None:
    search = OptunaSearch(Sampler.TPE, CHOICES, OBJECTIVES, (), seed=0)
    trials: list[Trial] = []
    while len(trials) < 80:
        points = search.propose(5, {trial.key for trial in trials})
        new = [
            Trial.of(len(trials) + at, point, Outcome(values={"latency_ms": abs(int(point["size"]) - 250) + 1.0}), ())
            for at, point in enumerate(points)
        ]
        trials += new
        search.learn(new)
    late = [abs(int(trial.choices["size"]) - 250) for trial in trials[40:]]
    # At random half of them would be further away than a hundred.
    assert sorted(late)[len(late) // 2] < 40


def test_optuna_says_nothing_and_its_level_stays(capfd: pytest.CaptureFixture[str]) -> None:
    optuna = pytest.importorskip("optuna")
    before = optuna.logging.get_verbosity()
    search = OptunaSearch(Sampler.NSGA2, CHOICES, OBJECTIVES, (), seed=0)
    points = search.propose(3, set())
    search.learn([Trial.of(0, point, Outcome(error_code="x", error="y"), ()) for point in points])
    assert len({key_of(point) for point in points}) == 3
    assert optuna.logging.get_verbosity() == before
    assert logging.getLogger("optuna").level == before
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError) as caught:
        OptunaSearch(Sampler.TPE, CHOICES, OBJECTIVES, (), seed=0)
    assert (caught.value.package, caught.value.extra) == ("optuna", "explore")


@pytest.mark.parametrize(
    ("objectives", "is_conditional", "expected"),
    [
        ("latency", False, {"multivariate": True, "group": False}),
        ("latency", True, {"multivariate": True, "group": True}),
        ("latency,memory", True, {"multivariate": False, "group": False}),
    ],
)
def test_the_settings_are_those_that_optuna_advises(
    monkeypatch: pytest.MonkeyPatch, objectives: str, is_conditional: bool, expected: dict[str, bool]
) -> None:
    samplers = pytest.importorskip("optuna").samplers
    asked: dict[str, object] = {}
    original = samplers.TPESampler

    def make(**words: object) -> object:
        asked.update(words)
        return original(**words)

    monkeypatch.setattr(samplers, "TPESampler", make)
    choices = parse_choices(
        {"kind": ["a", "b"], "more": {"from": 1, "to": 3, **({"if": {"kind": "a"}} if is_conditional else {})}}
    )
    weighed = parse_objectives(objectives, is_training=False, has_score=False)
    OptunaSearch(Sampler.TPE, choices, weighed, (), seed=7)
    assert asked == {"seed": 7, "constant_liar": True, "constraints_func": None, **expected}


def test_a_population_is_as_large_as_optuna_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    samplers = pytest.importorskip("optuna").samplers
    asked: dict[str, object] = {}
    original = samplers.NSGAIISampler

    def make(**words: object) -> object:
        asked.update(words)
        return original(**words)

    monkeypatch.setattr(samplers, "NSGAIISampler", make)
    OptunaSearch(Sampler.NSGA2, CHOICES, OBJECTIVES, (), seed=7)
    assert "population_size" not in asked
