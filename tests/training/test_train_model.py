"""From labels to a predictor in a folder."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.graph_samples import Part, assign_parts
from dippm.datasets.selection import LabelSelection
from dippm.errors import MissingExtraError, UsageError
from dippm.evaluation.relative_errors import mape_percent
from dippm.predictors.pmgns import PmgnsPredictor
from dippm.training import train_model as module
from dippm.training.train_model import load_samples, predict_with, train_model


def test_folder_is_a_predictor(samples, settings, labelled_models, tmp_path) -> None:
    report = train_model(samples, settings, tmp_path)
    assert report.samples == {"training": 34, "validation": 8, "test": 6}
    assert report.models == {"training": 17, "validation": 4, "test": 3}
    predictor = PmgnsPredictor.load(tmp_path)
    artefact = predictor.artefact
    assert artefact.metrics == ("memory_mb", "latency_ms", "energy_j")
    assert artefact.labels["device"] == "Processor"
    assert artefact.provenance["data_hash"] == samples.key
    statics = samples.static_features[assign_parts(samples) == Part.TRAINING]
    seen = artefact.labels["trained_range"]
    assert seen["batch"] == [1, 8]
    assert seen["macs"] == [statics[:, 0].min(), statics[:, 0].max()]
    assert seen["operators"] == [2, 12]
    assert artefact.errors_percent == report.mape_percent
    # NumPy without PyTorch says what the training said.
    predictions = predict_with(samples, assign_parts(samples), settings, tmp_path / "again")
    cache = GraphCache(labelled_models[1])
    for index in (0, 17, 47):
        recipe = samples.labels[index].recipe
        cached = cache.load(recipe.model_key, batch=recipe.batch)
        assert cached is not None
        (found,) = predictor.predict(cached.graph, batches=[recipe.batch])
        figures = [found.memory_mb, found.latency_ms, found.energy_j]
        assert figures == pytest.approx(predictions[index].tolist(), rel=1e-4)
    errors = mape_percent(predictions, samples.targets)
    parts = assign_parts(samples)
    of_test = mape_percent(predictions[parts == Part.TEST], samples.targets[parts == Part.TEST])
    assert report.mape_percent["test"] == pytest.approx(of_test)
    assert errors.keys() == {"memory_mb", "latency_ms", "energy_j", "mean"}


def test_prediction_needs_no_torch(samples, settings, labelled_models, tmp_path) -> None:
    train_model(samples, replace(settings, epochs=1), tmp_path)
    label = samples.labels[0]
    code = f"""
import sys
from dippm.datasets.graph_cache import GraphCache
from dippm.predictors.pmgns import PmgnsPredictor
graph = GraphCache({str(labelled_models[1])!r}).load({label.recipe.model_key!r}, batch=1).graph
for found in PmgnsPredictor.load({str(tmp_path)!r}).predict(graph, batches=[1, 4]):
    assert found.latency_ms > 0
print(sorted({{"torch", "lightning", "sklearn", "pandas"}} & sys.modules.keys()))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_interval_is_a_quantile_of_the_validation_errors() -> None:
    parts = np.array([Part.VALIDATION] * 19 + [Part.TEST] * 3, dtype=np.int8)
    measured = np.ones((22, 3))
    predicted = np.exp(np.tile(np.r_[np.arange(1, 20) / 10, 50, 50, 50][:, None], 3))
    measured[:, 1] = np.nan
    measured[:12, 2] = np.nan
    spreads = module._calibrate(predicted, measured, parts, ("memory_mb", "latency_ms", "energy_j"))
    # The 18th of 19, as 90 % of 20; seven and none are too few.
    assert spreads == {"memory_mb": pytest.approx(1.8)}


def test_trees(samples, settings, tmp_path) -> None:
    pytest.importorskip("lightgbm")
    report = train_model(samples, replace(settings, model="gbdt"), tmp_path)
    assert report.learning_rate is None
    held = json.loads((tmp_path / "model.json").read_text())
    assert held["model"] == "gbdt"
    assert {path.name for path in tmp_path.iterdir()} == {
        "model.json", "memory_mb.txt", "latency_ms.txt", "energy_j.txt",
    }  # fmt: skip
    before = (tmp_path / "model.json").read_bytes()
    with pytest.raises(UsageError, match="holds a predictor already") as caught:
        train_model(samples, replace(settings, model="gbdt"), tmp_path)
    assert caught.value.code == "train.exists"
    assert (tmp_path / "model.json").read_bytes() == before


def test_a_metric_without_labels_is_not_predicted(samples, settings, labelled_models, tmp_path) -> None:
    targets = samples.targets.copy()
    targets[:, 2] = np.nan
    report = train_model(replace(samples, targets=targets), replace(settings, epochs=1), tmp_path)
    assert all("energy_j" not in errors for errors in report.mape_percent.values())
    cached = GraphCache(labelled_models[1]).load(samples.labels[0].recipe.model_key, batch=1)
    assert cached is not None
    (found,) = PmgnsPredictor.load(tmp_path).predict(cached.graph, batches=[1])
    assert found.energy_j is None
    assert found.memory_mb is not None
    assert math.isfinite(found.memory_mb)
    assert math.isfinite(found.latency_ms)


def test_samples_of_a_selection(labelled_models, samples) -> None:
    labels, cache = labelled_models
    repeat = replace(
        labels[0], repeat=1, measurement=replace(labels[0].measurement, latency_ms=3 * samples.targets[0, 1])
    )
    other = replace(labels[1], measurement=replace(labels[1].measurement, device="H200"))
    found = load_samples([*labels, repeat, other], LabelSelection(device="processor"), cache)
    assert len(found) == len(samples)
    assert found.targets[0, 1] == pytest.approx(2 * samples.targets[0, 1])
    assert found.key != samples.key


def test_missing_package(samples, settings, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "lightning" else object())
    with pytest.raises(MissingExtraError, match="lightning"):
        train_model(samples, settings, tmp_path)
