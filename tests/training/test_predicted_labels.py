"""Labels that nobody measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dippm.costs.conditions import Conditions
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.store.label import PREDICTED_SOURCE, Label
from dippm.devices import find_device
from dippm.errors import UnsupportedError
from dippm.predictors.physics import PhysicsPredictor
from dippm.training.predicted_labels import predict_labels

_AMP = Conditions.parse(precision="amp")
_CARD = find_device("T4")


def test_they_are_what_the_predictor_says(labelled_models: tuple[list[Label], Path]) -> None:
    measured, folder = labelled_models
    cache, software = GraphCache(folder), Software.parse("torch 2.3+cu121")
    seen: list[tuple[int, int]] = []
    labels = list(
        predict_labels(
            [label.recipe for label in measured],
            cache,
            device=_CARD,
            conditions=_AMP,
            software=software,
            on_progress=lambda done, total: seen.append((done, total)),
        )
    )
    assert [label.recipe for label in labels] == [label.recipe for label in measured]
    assert seen[0] == (0, 24)
    assert seen[-1] == (24, 24)
    for label in (labels[0], labels[-1]):
        cached = cache.load(label.recipe.model_key, batch=label.recipe.batch)
        assert cached is not None
        (expected,) = PhysicsPredictor.load().predict(
            cached.graph, batches=[label.recipe.batch], devices=[_CARD], conditions=_AMP, software=software
        )
        found = label.measurement
        assert (found.latency_ms, found.energy_j, found.memory_mb) == (
            expected.latency_ms,
            expected.energy_j,
            expected.memory_mb,
        )
        assert (found.device, found.software.framework) == (_CARD.name, "torch 2.3+cu121")
        assert (label.source, label.graph_hash) == (PREDICTED_SOURCE, cached.fingerprint)
        assert label.configuration.conditions == _AMP


def test_what_cannot_run_or_be_held_is_left_out(labelled_models: tuple[list[Label], Path]) -> None:
    measured, folder = labelled_models
    fits = measured[0].recipe
    # 1e7 images of 16 x 16 pixels are 30 GiB of input alone; nobody has read the other one.
    too_large = replace(fits, batch=10_000_000)
    unread = replace(fits, arguments={"depth": 77})
    labels = predict_labels(
        [fits, too_large, unread], GraphCache(folder), device=_CARD, conditions=_AMP, software=DEFAULT_SOFTWARE
    )
    assert [label.recipe for label in labels] == [fits]
    with pytest.raises(UnsupportedError) as caught:
        predict_labels(
            [fits],
            GraphCache(folder),
            device=_CARD,
            conditions=replace(_AMP, runtime=Conditions.parse(runtime="compile").runtime),
            software=Software.parse("torch 1.12"),
        )
    assert caught.value.code == "software.impossible"
