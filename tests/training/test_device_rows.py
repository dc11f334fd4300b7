"""What an adaptation learns from labels of a device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dippm.costs.conditions import Conditions, Runtime
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.store.label import Label
from dippm.devices import DeviceSpec, find_device
from dippm.predictors.additive_artefact import ARTEFACT_FOLDER, OWN_REGIMES, REGIMES, AdditiveArtefact, manifest_path
from dippm.predictors.physics import PhysicsPredictor
from dippm.training.device_rows import DeviceRows, ShippedPredictor, fit_host_ratio


@pytest.fixture(name="rows", scope="module")
def _rows(card_labels: list[Label], card: DeviceSpec, labelled_models: tuple[list[Label], Path]) -> DeviceRows:
    shipped = ShippedPredictor(card, ARTEFACT_FOLDER, labelled_models[1])
    return DeviceRows.of(card_labels, AdditiveArtefact.read(manifest_path(REGIMES[0])), shipped)


def test_what_is_said_before_is_what_the_program_says(
    rows: DeviceRows, card: DeviceSpec, labelled_models: tuple[list[Label], Path]
) -> None:
    for place, label in enumerate(rows.samples.labels[:6]):
        cached = GraphCache(labelled_models[1]).load(label.recipe.model_key, batch=label.recipe.batch)
        assert cached is not None
        (said,) = PhysicsPredictor.load().predict(
            cached.graph,
            batches=[label.recipe.batch],
            devices=[card],
            conditions=label.configuration.conditions,
        )
        assert rows.before_ms[place] == said.latency_ms
        low, high = said.intervals["latency_ms"]
        assert rows.is_inside[place] == (low <= rows.samples.measured_ms[place] <= high)
    # Large batches keep the device busy.
    is_large = np.array([label.recipe.batch > 1 for label in rows.samples.labels])
    assert rows.before_ms[is_large] == pytest.approx(rows.busy_ms[is_large], rel=0.05)


@pytest.mark.parametrize("runtime", [Runtime.EAGER, Runtime.CUDA_GRAPH])
def test_networks_of_an_architecture_learn_what_kernels_take(
    runtime: Runtime, card_labels: list[Label], labelled_models: tuple[list[Label], Path]
) -> None:
    conditions = Conditions.parse(precision="amp", runtime=runtime.value)
    labels = [
        replace(label, configuration=replace(label.configuration, conditions=conditions))
        for label in card_labels
        if label.recipe.batch > 1
    ]
    shipped = ShippedPredictor(find_device("H200"), ARTEFACT_FOLDER, labelled_models[1])
    rows = DeviceRows.of(labels, AdditiveArtefact.read(manifest_path(OWN_REGIMES[0])), shipped)
    assert rows.busy_ms == pytest.approx(rows.before_ms, rel=0.05)
    assert (rows.network_ms < rows.busy_ms).all()
    everything = np.arange(len(rows))
    assert rows.call_ms(rows.fitted, everything) == pytest.approx(rows.busy_ms, rel=1e-4)
    assert rows.learned.measured_ms == pytest.approx(rows.samples.measured_ms * rows.network_ms / rows.busy_ms)
    assert list(rows.busy(1e9)) == ([] if runtime is Runtime.EAGER else list(everything))


def test_scatter_tells_which_rows_wait_for_the_host(rows: DeviceRows) -> None:
    small = np.array([label.recipe.batch == 1 for label in rows.samples.labels])
    assert list(rows.busy(1.0)) == list(np.flatnonzero(~small))
    assert list(rows.waiting(1.0)) == list(np.flatnonzero(small))
    steady, restless = _scattering(rows, 1e-3), _scattering(rows, 0.05)
    assert list(steady.busy(1.0)) == list(range(len(rows)))
    assert list(steady.waiting(1.0)) == []
    assert list(restless.busy(1.0)) == []
    # What scatters and is busy for long says nothing of the host's rate.
    assert list(restless.waiting(1.0)) == list(np.flatnonzero(small))


def test_host_ratio_needs_rows_that_wait(rows: DeviceRows) -> None:
    launched = np.full(len(rows), 0.1)
    launched[:4] = 2.0
    few = replace(rows, busy_ms=np.full(len(rows), 1.0), launched_ms=launched)
    few = replace(few, samples=replace(few.samples, measured_ms=launched * 3.0))
    assert fit_host_ratio([few]) == 1.0
    launched[4] = 4.0
    few = replace(few, samples=replace(few.samples, measured_ms=launched * 3.0))
    assert fit_host_ratio([few]) == pytest.approx(3.0)
    assert fit_host_ratio([_scattering(few, 1e-3)]) == 1.0
    assert fit_host_ratio([]) == 1.0


def _scattering(rows: DeviceRows, share: float) -> DeviceRows:
    labels = tuple(
        replace(
            label,
            measurement=replace(label.measurement, latency_std_ms=share * (label.measurement.latency_ms or 0.0)),
        )
        for label in rows.samples.labels
    )
    return replace(rows, samples=replace(rows.samples, labels=labels))
