"""Training of DNNPerf's networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dippm.datasets.graph_samples import Part, assign_parts
from dippm.datasets.training_samples import build_training_samples
from dippm.errors import MissingExtraError, UsageError
from dippm.features.dnnperf import COST_COLUMNS, EDGE_COLUMNS, NODE_COLUMNS, OPERATORS
from dippm.features.dnnperf_scaling import Scaler
from dippm.models.dnnperf_registry import DNNPERF_NETWORKS, make_dnnperf_network
from dippm.training import dnnperf
from dippm.training.dnnperf import DnnperfTrainingSettings, predict_steps
from dippm.training.dnnperf_batches import prepare_tensors
from dippm.training.settings import TrainingSettings


@pytest.fixture(scope="module")
def steps(training_labels):
    labels, folder = training_labels
    return build_training_samples(labels, folder)


@pytest.fixture(scope="module")
def parts(steps):
    return assign_parts(steps)


def prepare(steps, parts, *, scaler=Scaler.MIN_MAX, hides_costs=False):
    return prepare_tensors(steps, np.flatnonzero(parts == Part.TRAINING), scaler=scaler, hides_costs=hides_costs)


def test_batch_by_hand(steps, parts) -> None:
    tensors, scaling = prepare(steps, parts)
    batch = tensors[[5, 2]]
    counts = steps.node_counts[[5, 2]]
    assert batch.graph_ids.tolist() == [0] * counts[0] + [1] * counts[1]
    own = [steps.edge_index[:, steps.edge_offsets[i] : steps.edge_offsets[i + 1]] for i in (5, 2)]
    assert batch.edge_index.tolist() == np.concatenate([own[0], own[1] + counts[0]], axis=1).tolist()
    nodes = slice(*steps.node_offsets[2:4])
    found = batch.node_features[counts[0] :].numpy()
    assert found[:, : len(OPERATORS)].argmax(axis=1).tolist() == steps.operators[nodes].tolist()
    assert (found[:, : len(OPERATORS)].sum(axis=1) == 1).all()
    np.testing.assert_array_equal(found[:, len(OPERATORS) :], scaling.nodes(steps.node_values[nodes]))
    edges = slice(*steps.edge_offsets[2:4])
    np.testing.assert_array_equal(batch.edge_features[-own[1].shape[1] :], scaling.edges(steps.edge_values[edges]))
    assert batch.targets.shape == (2, 3)


def test_scaling_is_of_the_training_part_alone(steps, parts) -> None:
    tensors, scaling = prepare(steps, parts)
    is_training = np.repeat(parts == Part.TRAINING, steps.node_counts)
    scaled = tensors.node_values.numpy()[is_training]
    assert scaled.min() == pytest.approx(-1)
    assert scaled.max() == pytest.approx(1)
    changed = replace(steps, targets=np.where(parts[:, None] == Part.TEST, 1e6, steps.targets))
    assert prepare(changed, parts)[1].target_mean.tolist() == scaling.target_mean.tolist()


def test_sums_count_operators_and_add_up_values(steps, parts) -> None:
    tensors, scaling = prepare(steps, parts)
    sums = tensors.graph_features.numpy() * scaling.sums.scale + scaling.sums.shift
    nodes = slice(*steps.node_offsets[7:9])
    counts = np.bincount(steps.operators[nodes], minlength=len(OPERATORS))
    np.testing.assert_allclose(np.expm1(sums[7, : len(OPERATORS)]), counts, atol=1e-4)
    flops = np.expm1(steps.node_values[nodes, NODE_COLUMNS.index("flops")].astype(np.float64)).sum()
    assert np.expm1(sums[7, len(OPERATORS) + NODE_COLUMNS.index("flops")]) == pytest.approx(flops, rel=1e-4)


def test_costs_can_be_hidden(steps, parts) -> None:
    tensors, _ = prepare(steps, parts, hides_costs=True)
    hidden = len(COST_COLUMNS & set(NODE_COLUMNS))
    assert tensors.widths == {
        "node_features": len(OPERATORS) + len(NODE_COLUMNS) - hidden,
        "edge_features": len(EDGE_COLUMNS) - 1,
        "graph_features": len(OPERATORS) + len(NODE_COLUMNS) - hidden,
    }


@pytest.mark.parametrize("name", list(DNNPERF_NETWORKS))
def test_a_batch_is_one_by_one(steps, parts, name: str) -> None:
    variant = DNNPERF_NETWORKS[name]
    tensors, _ = prepare(steps, parts, scaler=variant.scaler, hides_costs=variant.hides_costs)
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
def test_what_is_trained_learns(steps, parts, model: str, epochs: int, tmp_path) -> None:
    predicted = predict_steps(steps, parts, _settings(model=model, epochs=epochs, patience=epochs), tmp_path)
    training = parts == Part.TRAINING
    assert predicted.shape == (len(steps), 3)
    mean = np.exp(np.log(steps.targets[training, 1]).mean())
    guess = float(np.abs(mean / steps.targets[training, 1] - 1).mean())
    assert _error(predicted, steps, training) < 0.4 * guess


@pytest.mark.slow
def test_a_resumed_training_is_one_without_a_break(steps, parts, tmp_path) -> None:
    # A constant rate: a schedule is laid out over all epochs.
    settings = _settings(epochs=4, schedule="constant", hidden=8)
    whole = predict_steps(steps, parts, settings, tmp_path / "whole")
    predict_steps(steps, parts, replace(settings, epochs=2), tmp_path / "broken")
    again = predict_steps(steps, parts, settings, tmp_path / "broken", resume=True)
    np.testing.assert_array_equal(again, whole)


def test_defaults_and_names() -> None:
    assert DnnperfTrainingSettings().model == "anee"
    with pytest.raises(UsageError, match=r"anee, birnn.*'pmgns'") as caught:
        DnnperfTrainingSettings(model="pmgns")
    assert caught.value.code == "train.settings"
    with pytest.raises(UsageError, match=r"pmgns, gat.*'anee'"):
        TrainingSettings(model="anee")


def test_an_empty_part_is_an_error(steps, parts, tmp_path) -> None:
    with pytest.raises(UsageError) as caught:
        predict_steps(steps, np.where(parts == Part.VALIDATION, Part.TEST, parts), _settings(), tmp_path)
    assert caught.value.code == "train.too_few"


def test_a_missing_package_is_named(steps, parts, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(dnnperf, "find_spec", lambda name: None if name == "lightning" else name)
    with pytest.raises(MissingExtraError, match="lightning"):
        predict_steps(steps, parts, _settings(), tmp_path)
