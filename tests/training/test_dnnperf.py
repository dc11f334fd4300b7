"""Training of DNNPerf's networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dippm.datasets.graph_samples import Part
from dippm.errors import MissingExtraError, UsageError
from dippm.features.dnnperf_scaling import Scaler
from dippm.models.dnnperf_registry import DNNPERF_NETWORKS, make_dnnperf_network
from dippm.training import dnnperf
from dippm.training.dnnperf import DnnperfTrainingSettings, predict_steps
from dippm.training.dnnperf_batches import prepare_tensors
from dippm.training.settings import TrainingSettings


def prepare(steps, step_parts, *, scaler=Scaler.MIN_MAX, hides_costs=False):
    return prepare_tensors(steps, np.flatnonzero(step_parts == Part.TRAINING), scaler=scaler, hides_costs=hides_costs)


@pytest.mark.parametrize("name", list(DNNPERF_NETWORKS))
def test_a_batch_is_one_by_one(steps, step_parts, name: str) -> None:
    variant = DNNPERF_NETWORKS[name]
    tensors, _ = prepare(steps, step_parts, scaler=variant.scaler, hides_costs=variant.hides_costs)
    torch.manual_seed(0)
    network = make_dnnperf_network(name, hidden=8, dropout=0.1, outputs=3, **tensors.widths).eval()
    with torch.inference_mode():
        together = network(*tensors[list(range(12))][:-1])
        apart = torch.cat([network(*tensors[[index]][:-1]) for index in range(12)])
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-5)
    assert apart.std(dim=0).min() > 0


def _settings(**changes) -> DnnperfTrainingSettings:
    settings = {"hidden": 16, "epochs": 15, "batch_size": 8, "learning_rate": 0.01, "accelerator": "cpu"}
    return DnnperfTrainingSettings(**settings | changes)


def _error(predicted, steps, chosen) -> float:
    return float(np.abs(predicted[chosen, 1] / steps.targets[chosen, 1] - 1).mean())


@pytest.mark.slow
@pytest.mark.parametrize(("model", "epochs"), [("anee", 15), ("mlp", 60), ("gbdt", 1)])
def test_what_is_trained_learns(steps, step_parts, model: str, epochs: int, tmp_path) -> None:
    predicted = predict_steps(steps, step_parts, _settings(model=model, epochs=epochs, patience=epochs), tmp_path)
    training = step_parts == Part.TRAINING
    assert predicted.shape == (len(steps), 3)
    mean = np.exp(np.log(steps.targets[training, 1]).mean())
    guess = float(np.abs(mean / steps.targets[training, 1] - 1).mean())
    assert _error(predicted, steps, training) < 0.4 * guess


@pytest.mark.slow
def test_a_resumed_training_is_one_without_a_break(steps, step_parts, tmp_path) -> None:
    # A constant rate: a schedule is laid out over all epochs.
    settings = _settings(epochs=4, schedule="constant", hidden=8)
    whole = predict_steps(steps, step_parts, settings, tmp_path / "whole")
    predict_steps(steps, step_parts, replace(settings, epochs=2), tmp_path / "broken")
    again = predict_steps(steps, step_parts, settings, tmp_path / "broken", resume=True)
    np.testing.assert_array_equal(again, whole)


def test_defaults_and_names() -> None:
    assert DnnperfTrainingSettings().model == "anee"
    with pytest.raises(UsageError, match=r"anee, birnn.*'pmgns'") as caught:
        DnnperfTrainingSettings(model="pmgns")
    assert caught.value.code == "train.settings"
    with pytest.raises(UsageError, match=r"pmgns, gat.*'anee'"):
        TrainingSettings(model="anee")


def test_an_empty_part_is_an_error(steps, step_parts, tmp_path) -> None:
    with pytest.raises(UsageError) as caught:
        predict_steps(steps, np.where(step_parts == Part.VALIDATION, Part.TEST, step_parts), _settings(), tmp_path)
    assert caught.value.code == "train.too_few"


def test_a_missing_package_is_named(steps, step_parts, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(dnnperf, "find_spec", lambda name: None if name == "lightning" else name)
    with pytest.raises(MissingExtraError, match="lightning"):
        predict_steps(steps, step_parts, _settings(), tmp_path)
