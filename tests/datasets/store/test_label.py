from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dippm.costs.conditions import Conditions
from dippm.datasets.store.label import Label
from dippm.measuring.configuration import Engine
from dippm.measuring.measurement import Outcome


def _run(label: Label, **conditions: str) -> Label:
    return replace(label, configuration=replace(label.configuration, conditions=Conditions.parse(**conditions)))


@pytest.mark.parametrize(
    "change",
    [
        lambda label: replace(label, recipe=replace(label.recipe, batch=label.recipe.batch + 1)),
        lambda label: replace(label, recipe=replace(label.recipe, arguments={"other": 1})),
        lambda label: replace(label, repeat=1),
        lambda label: replace(label, source="elsewhere"),
        lambda label: replace(label, measurement=replace(label.measurement, device="Other")),
        lambda label: replace(label, configuration=replace(label.configuration, engine=Engine.ONNXRUNTIME)),
        lambda label: _run(label, precision="amp"),
        lambda label: _run(label, layout="nhwc"),
        lambda label: _run(label, runtime="compile"),
        lambda label: _run(label, mode="training", optimizer="adam"),
    ],
)
def test_what_is_asked_changes_the_key(make_label: Callable[..., Label], change: Callable[[Label], Label]) -> None:
    label = make_label()
    assert change(label).key != label.key
    assert len(label.key) == 16


@pytest.mark.parametrize(
    "change",
    [
        lambda label: replace(label, graph_hash="0123"),
        lambda label: replace(label, measurement=replace(label.measurement, latency_ms=99.0)),
        lambda label: replace(label, measurement=replace(label.measurement, outcome=Outcome.TIMED_OUT)),
        lambda label: replace(label, recipe=replace(label.recipe, collection="other", family="other")),
    ],
)
def test_what_comes_out_does_not(make_label: Callable[..., Label], change: Callable[[Label], Label]) -> None:
    label = make_label()
    assert change(label) != label
    assert change(label).key == label.key


def test_optimizers_are_told_apart(make_label: Callable[..., Label]) -> None:
    labels = [_run(make_label(), mode="training", optimizer=name) for name in ("sgd", "momentum", "adam", "adamw")]
    assert len({label.key for label in labels}) == 4
