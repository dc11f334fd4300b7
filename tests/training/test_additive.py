"""From labels to an artefact that answers as the network that was trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dippm.costs.conditions import Mode, Optimizer
from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.store.label import Label
from dippm.devices import find_device
from dippm.features.physical.columns import AT
from dippm.predictors.additive import AdditivePredictor
from dippm.predictors.additive_artefact import Regime, manifest_path, write_tensors
from dippm.predictors.additive_novelty import Novelty
from dippm.training.additive import train_additive
from dippm.training.additive_fit import AdditiveSettings, SampleTensors, fit_additive
from dippm.training.additive_labels import random_parts
from dippm.training.additive_novelty import describe_samples
from dippm.training.additive_protocol import predict_families
from dippm.training.additive_samples import AdditiveSamples

_DEVICE = "GeForce RTX 3090"


@pytest.mark.parametrize("ramps", [0, 3])
def test_the_artefact_answers_as_the_network_and_its_shares_add_up(
    ramps: int,
    step_samples: AdditiveSamples,
    training_labels: tuple[list[Label], Path],
    tmp_path: Path,
    additive_settings: AdditiveSettings,
) -> None:
    settings = replace(additive_settings, ramps=ramps)
    families = predict_families(step_samples, replace(settings, members=1), folds=2, folder=tmp_path)
    artefact, tensors = train_additive(step_samples, settings, families, data_sha256="0", command="none")
    assert any(name.startswith("ramp.") for name in tensors) is bool(ramps)
    path = manifest_path(Regime(mode=Mode.TRAINING), tmp_path)
    artefact.write(path)
    write_tensors(path, tensors)
    assert json.loads(path.read_text())["mode"] == "training"
    predictor = AdditivePredictor.load(tmp_path)
    fitted = fit_additive(step_samples, random_parts(step_samples, seed=0)[0], settings)
    position = int(step_samples.usable[-1])
    label = step_samples.labels[position]
    cached = GraphCache(training_labels[1]).load(label.recipe.model_key, batch=label.recipe.batch)
    assert cached is not None
    step = make_training_graph(cached.graph, TrainingSettings(optimizer=Optimizer.MOMENTUM, precision=Precision.FP32))
    times = predictor.break_down(step, [label.recipe.batch], find_device(_DEVICE), label.configuration.conditions)
    # Networks that saw one optimizer alone leave its update to the sum of kernel times.
    batch = SampleTensors(step_samples, fitted.scale).batch(np.array([position]))
    with torch.no_grad():
        corrected = np.mean([batch.class_ms(network).numpy() for network in fitted.members], axis=0)
    plain = (batch.kernel_ms + batch.launch_ms).numpy()
    arrays = step_samples.arrays
    start, stop = (int(arrays.node_offsets[place]) for place in (position, position + 1))
    is_update = arrays.node_features[start:stop, AT["in_optimizer"]] > 0.0
    assert is_update.any()
    expected = float(np.where(is_update, plain, corrected).sum())
    assert times.busy_ms.sum() == pytest.approx(expected, rel=1e-3)
    assert times.share_ms.sum() == pytest.approx(times.latency_ms[0])
    # The same distance, from the graph and from the arrays of the training.
    descriptors = describe_samples(step_samples, fitted.scale)
    novelty = Novelty.from_tensors(tensors, distances=artefact.distances, half_widths=artefact.half_widths)
    half_width = novelty.half_width(novelty.distance(descriptors[[position]]))
    assert times.half_width == pytest.approx(half_width, rel=1e-2, abs=1e-3)
