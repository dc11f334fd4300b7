"""Training steps and labels as arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dippm.costs.conditions import Optimizer
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.datasets import training_samples
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.graph_samples import assign_parts
from dippm.datasets.training_samples import build_training_samples
from dippm.errors import UsageError
from dippm.features.dnnperf import NODE_COLUMNS, OPERATORS, compute_dnnperf_features
from dippm.graph import OpKind

_ARRAYS = ("operators", "node_values", "edge_index", "edge_values", "node_offsets", "edge_offsets", "cost_sums")


def equal(first, second) -> bool:
    return all(
        np.array_equal(getattr(first, name), getattr(second, name), equal_nan=name == "targets")
        for name in (*_ARRAYS, "targets")
    )


def test_each_sample_is_the_step_of_its_model_at_its_batch(training_labels) -> None:
    labels, folder = training_labels
    # In another order than model by model.
    order = [*labels[::2], *labels[1::2]]
    samples = build_training_samples(order, folder)
    assert len(samples) == len(labels)
    for index in (0, 5, 30, 47):
        label = order[index]
        cached = GraphCache(folder).load(label.recipe.model_key, batch=label.recipe.batch)
        assert cached is not None
        step = make_training_graph(cached.graph, TrainingSettings(optimizer=Optimizer.MOMENTUM))
        (wanted,) = compute_dnnperf_features(step, [label.recipe.batch], None)
        nodes = slice(*samples.node_offsets[index : index + 2])
        edges = slice(*samples.edge_offsets[index : index + 2])
        np.testing.assert_array_equal(samples.operators[nodes], wanted.operators)
        np.testing.assert_array_equal(samples.node_values[nodes], wanted.node_values)
        np.testing.assert_array_equal(samples.edge_index[:, edges], wanted.edge_index)
        np.testing.assert_array_equal(samples.edge_values[edges], wanted.edge_values)
        assert OPERATORS.index(OpKind.OPTIMIZER) in wanted.operators
        assert samples.labels[index].graph_hash == cached.fingerprint
        assert samples.targets[index, 1] == label.measurement.latency_ms
    assert samples.node_counts.sum() == len(samples.operators)
    assert set(samples.families) == {"plain", "deep"}
    # Forward and backward pass are summed.
    flops = np.expm1(samples.node_values[:, NODE_COLUMNS.index("flops")].astype(np.float64))
    sums = np.add.reduceat(flops, samples.node_offsets[:-1])
    np.testing.assert_allclose(samples.cost_sums[:, 2], sums, rtol=1e-4)


def test_models_are_split_as_with_other_samples(training_labels) -> None:
    labels, folder = training_labels
    samples = build_training_samples(labels, folder)
    parts = assign_parts(samples)
    assert set(parts.tolist()) == {0, 1, 2}
    for key in {label.recipe.model_key for label in labels}:
        of_model = [part for label, part in zip(samples.labels, parts, strict=True) if label.recipe.model_key == key]
        assert len(set(of_model)) == 1


def test_read_back_without_computing(training_labels, monkeypatch) -> None:
    labels, folder = training_labels
    made = build_training_samples(labels, folder)
    monkeypatch.setattr(training_samples, "make_training_graph", None)
    again = build_training_samples(labels, folder)
    assert equal(made, again)
    assert again.key == made.key
    changed = replace(labels[0], measurement=replace(labels[0].measurement, latency_ms=9.0))
    other = build_training_samples([changed, *labels[1:]], folder)
    assert other.targets[0, 1] == 9.0
    assert other.key != made.key


def test_other_conditions_and_devices_are_other_samples(training_labels) -> None:
    labels, folder = training_labels
    made = build_training_samples(labels[:2], folder)
    conditions = replace(labels[0].configuration.conditions, optimizer=Optimizer.ADAM)
    adam = [replace(label, configuration=replace(label.configuration, conditions=conditions)) for label in labels[:2]]
    assert not equal(build_training_samples(adam, folder), made)
    known = [replace(label, measurement=replace(label.measurement, device="A100-SXM4-40GB")) for label in labels[:2]]
    at = NODE_COLUMNS.index("device_memory_mb")
    assert not made.node_values[:, at].any()
    assert build_training_samples(known, folder).node_values[:, at].all()


def test_damaged_file_is_made_again(training_labels, tmp_path) -> None:
    labels, folder = training_labels
    for path in folder.glob("??/*"):
        target = tmp_path / path.relative_to(folder)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
    made = build_training_samples(labels[:4], tmp_path)
    (stored,) = (tmp_path / "samples").iterdir()
    content = stored.read_bytes()
    np.savez(tmp_path / "other.npz", kept=np.array([99]))
    for damaged in (content[: len(content) // 2], b"", (tmp_path / "other.npz").read_bytes()):
        stored.write_bytes(damaged)
        assert equal(build_training_samples(labels[:4], tmp_path), made)


def test_labels_of_inference_are_refused(labelled_models) -> None:
    labels, folder = labelled_models
    with pytest.raises(UsageError, match="inference") as caught:
        build_training_samples(labels, folder)
    assert caught.value.code == "samples.mode"


def test_nothing_to_learn_from_is_an_error(training_labels, tmp_path) -> None:
    labels, folder = training_labels
    bare = replace(labels[0].measurement, latency_ms=None, memory_mb=None, energy_j=None)
    with pytest.raises(UsageError, match="no label has a figure") as caught:
        build_training_samples([replace(labels[0], measurement=bare)], folder)
    assert caught.value.code == "samples.empty"
