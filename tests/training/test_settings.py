"""Settings of a training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dippm.errors import UsageError
from dippm.training.settings import TrainingSettings


def test_defaults_are_those_of_the_paper() -> None:
    settings = TrainingSettings()
    assert (settings.model, settings.epochs, settings.hidden) == ("pmgns", 10, 512)
    assert (settings.dropout, settings.learning_rate) == (0.05, 2.754e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": "resnet"},
        {"epochs": 0},
        {"hidden": 0},
        {"dropout": 1.0},
        {"dropout": float("nan")},
        {"learning_rate": 0.0},
        {"learning_rate": "fast"},
        {"learning_rate": float("nan")},
        {"schedule": "cosine"},
        {"batch_size": 0},
        {"patience": 0},
        {"seed": -1},
        {"accelerator": "tpu"},
        {"devices": 0},
    ],
)
def test_values_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong)).replace("_", " ")) as caught:
        TrainingSettings(**wrong)
    assert caught.value.code == "train.settings"


def test_trees_have_no_mixed_precision() -> None:
    assert TrainingSettings(model="gat", mixed_precision=True).mixed_precision
    with pytest.raises(UsageError, match=r"trees have none\. Got the model 'gbdt'.*Leave it out") as caught:
        TrainingSettings(model="gbdt", mixed_precision=True)
    assert caught.value.code == "mixed_precision.unused"


def test_a_run_may_go_on_for_longer_but_not_otherwise() -> None:
    settings = TrainingSettings()
    stored = settings.to_dict()
    assert replace(settings, epochs=99, devices=2).describes_run(stored)
    assert not replace(settings, hidden=64).describes_run(stored)
    assert not replace(settings, seed=1).describes_run(stored)
    # One cycle is laid out over all epochs.
    cycle = replace(settings, schedule="one-cycle")
    assert not cycle.describes_run(stored)
    assert not replace(cycle, epochs=99).describes_run(cycle.to_dict())
    assert replace(cycle, devices=2).describes_run(cycle.to_dict())
