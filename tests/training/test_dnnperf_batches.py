"""Tensors of DNNPerf's training: joined graphs, scaled by the training part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dippm.datasets.graph_samples import Part
from dippm.features.dnnperf import COST_COLUMNS, EDGE_COLUMNS, NODE_COLUMNS, OPERATORS
from dippm.features.dnnperf_scaling import Scaler
from dippm.training.dnnperf_batches import prepare_tensors


def prepare(steps, step_parts, *, scaler=Scaler.MIN_MAX, hides_costs=False):
    return prepare_tensors(steps, np.flatnonzero(step_parts == Part.TRAINING), scaler=scaler, hides_costs=hides_costs)


def test_batch_by_hand(steps, step_parts) -> None:
    tensors, scaling = prepare(steps, step_parts)
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


def test_scaling_is_of_the_training_part_alone(steps, step_parts) -> None:
    tensors, scaling = prepare(steps, step_parts)
    is_training = np.repeat(step_parts == Part.TRAINING, steps.node_counts)
    scaled = tensors.node_values.numpy()[is_training]
    assert scaled.min() == pytest.approx(-1)
    assert scaled.max() == pytest.approx(1)
    changed = replace(steps, targets=np.where(step_parts[:, None] == Part.TEST, 1e6, steps.targets))
    assert prepare(changed, step_parts)[1].target_mean.tolist() == scaling.target_mean.tolist()


def test_sums_count_operators_and_add_up_values(steps, step_parts) -> None:
    tensors, scaling = prepare(steps, step_parts)
    sums = tensors.graph_features.numpy() * scaling.sums.scale + scaling.sums.shift
    nodes = slice(*steps.node_offsets[7:9])
    counts = np.bincount(steps.operators[nodes], minlength=len(OPERATORS))
    np.testing.assert_allclose(np.expm1(sums[7, : len(OPERATORS)]), counts, atol=1e-4)
    flops = np.expm1(steps.node_values[nodes, NODE_COLUMNS.index("flops")].astype(np.float64)).sum()
    assert np.expm1(sums[7, len(OPERATORS) + NODE_COLUMNS.index("flops")]) == pytest.approx(flops, rel=1e-4)


def test_costs_can_be_hidden(steps, step_parts) -> None:
    tensors, _ = prepare(steps, step_parts, hides_costs=True)
    hidden = len(COST_COLUMNS & set(NODE_COLUMNS))
    assert tensors.widths == {
        "node_features": len(OPERATORS) + len(NODE_COLUMNS) - hidden,
        "edge_features": len(EDGE_COLUMNS) - 1,
        "graph_features": len(OPERATORS) + len(NODE_COLUMNS) - hidden,
    }
