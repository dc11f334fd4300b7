from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dippm.costs.conditions import Conditions
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.store.label import Label
from dippm.devices import DeviceSpec
from dippm.measuring.measurement import SoftwareStack
from dippm.predictors.adapted import AdaptedPredictor
from dippm.training.adapt_device import adapt_device
from dippm.training.additive_adaptation import AdaptationSettings
from dippm.training.device_calibration import measure_context

_QUICK = AdaptationSettings(steps=40)


def test_context_is_that_of_the_labels(
    card_labels: list[Label], card: DeviceSpec, labelled_models: tuple[list[Label], Path], tmp_path: Path
) -> None:
    """Where the labels say what the process held beside tensors, that and its spread replace the estimate."""
    held = [
        replace(label, measurement=replace(label.measurement, context_mb=700.0 + place))
        for place, label in enumerate(card_labels[:31])
    ]
    settings = replace(_QUICK, steps=2)
    report = adapt_device(held, card, tmp_path, cache=labelled_models[1], settings=settings)
    assert report.context is not None
    assert (report.context.rows, report.context.context_mb) == (31, 715.0)
    assert report.context.margin_low_mb == report.context.margin_high_mb == 13.5
    cached = GraphCache(labelled_models[1]).load(card_labels[0].recipe.model_key, batch=1)
    assert cached is not None
    predictor = AdaptedPredictor.load(tmp_path)
    (found,) = predictor.physics.predict(
        cached.graph, batches=[1], devices=[predictor.manifest.device], conditions=Conditions.parse(precision="amp")
    )
    assert found.memory_parts_mb["context"] == 715.0
    assert found.memory_mb - found.intervals["memory_mb"][0] < 14.0 + found.memory_parts_mb["activations"]
    assert measure_context(held[:9], card, least_rows=10) is None
    old = SoftwareStack(framework="torch 1.12")
    eager = [replace(label, measurement=replace(label.measurement, software=old)) for label in held]
    assert measure_context(eager, card, least_rows=10) is None
