from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dippm.costs.conditions import Conditions, Mode
from dippm.costs.rates import architecture_of
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.store.label import Label
from dippm.devices import DeviceSpec, find_device
from dippm.measuring.measurement import SoftwareStack
from dippm.predictors.adapted import AdaptedPredictor
from dippm.predictors.calibration import Calibration
from dippm.predictors.physics import PhysicsPredictor
from dippm.training.adapt_device import adapt_device
from dippm.training.additive_adaptation import AdaptationSettings
from dippm.training.device_calibration import calibrate_power, measure_context

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


@pytest.mark.parametrize("share", [0.3, 0.8, 1.0, 1.02])
def test_power_of_a_board_at_its_limit_is_that_of_the_labels(
    share: float, labelled_models: tuple[list[Label], Path]
) -> None:
    """A running T4 is at its limit by the shipped model: what a factor changes is not in proportion to it."""
    board, conditions = find_device("T4"), Conditions.parse(precision="amp")
    physics, cache = PhysicsPredictor.load(), GraphCache(labelled_models[1])
    labels, loads, times = [], [], []
    for label in labelled_models[0][:10]:
        batch, cached = label.recipe.batch, cache.load(label.recipe.model_key, batch=label.recipe.batch)
        assert cached is not None
        (found,) = physics.predict(cached.graph, batches=[batch], devices=[board], conditions=conditions)
        energy_j = share * board.board_power_w * found.latency_ms / 1e3
        labels.append(
            replace(
                label,
                configuration=replace(label.configuration, conditions=conditions),
                measurement=replace(label.measurement, latency_ms=found.latency_ms, energy_j=energy_j),
            )
        )
        loads.append(physics.load_of(cached.graph, batch=batch, device=board, conditions=conditions))
        times.append(found.latency_ms)
    of_architecture = {architecture_of(board): 9.0}
    calibration = replace(Calibration.read(), power_spreads=of_architecture, busy_power_spreads=of_architecture)
    before = {Mode.INFERENCE: calibration}
    after, _ = calibrate_power(labels, before, physics, board, cache=cache, least_rows=10)
    power = after[Mode.INFERENCE].power
    drawn = [load.power_w(power, board, np.array([ms]))[0] for load, ms in zip(loads, times, strict=True)]
    assert np.median(drawn) == pytest.approx(min(share, 1.0) * board.board_power_w, rel=1e-3)
    assert power.idle <= 1.0
    errors = np.abs(np.log(np.array(drawn) / (share * board.board_power_w)))
    assert after[Mode.INFERENCE].power_spread_on(board, np.array([0.0, 1.0])) == pytest.approx(errors.max())
