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
    search = OptunaSearch(Sampler.TPE, CHOICES, OBJECTIVES, (), seed=0, trials=80)
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
    search = OptunaSearch(Sampler.NSGA2, CHOICES, OBJECTIVES, (), seed=0, trials=10)
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
        OptunaSearch(Sampler.TPE, CHOICES, OBJECTIVES, (), seed=0, trials=10)
    assert (caught.value.package, caught.value.extra) == ("optuna", "explore")
