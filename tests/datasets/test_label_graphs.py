"""Graphs of labels in the mode that each was measured in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
from dippm.costs.conditions import Conditions, Mode, Optimizer
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.label_graphs import build_label_graphs, load_label_graph
from dippm.datasets.recipes.collections import load_collection
from dippm.datasets.store.label import Label
from dippm.graph import OpKind
from dippm.measuring.configuration import Configuration


def test_a_model_with_dropout_has_it_in_training_alone(
    labelled_models: tuple[list[Label], Path], tmp_path: Path
) -> None:
    label = replace(labelled_models[0][0], recipe=load_collection("cpu-small")[0])  # an AlexNet, which has dropout
    step = Conditions(mode=Mode.TRAINING, optimizer=Optimizer.SGD)
    labels = [
        replace(label, configuration=Configuration(batch=label.recipe.batch, conditions=conditions))
        for conditions in (Conditions(), step)
    ]
    cache, seen = GraphCache(tmp_path), []
    assert load_label_graph(labels[0], cache) is None
    assert build_label_graphs(labels, cache, jobs=1, on_progress=lambda *counts: seen.append(counts)) == []
    assert seen == [(0, 1), (1, 1)] * 2
    drops = []
    for each in labels:
        entry = load_label_graph(each, cache)
        assert entry is not None
        drops.append(sum(node.kind is OpKind.DROPOUT for node in entry.graph.nodes))
    assert (drops[0], drops[1] > 0) == (0, True)
