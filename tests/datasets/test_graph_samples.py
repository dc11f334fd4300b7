"""Graphs and labels as arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dippm.datasets import graph_samples
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.graph_samples import Part, assign_parts, build_samples
from dippm.errors import UsageError
from dippm.features.cost_sums import compute_cost_sums
from dippm.features.pmgns import EdgeMode, compute_features_of_batches
from dippm.graph import Graph, fixed_shape
from dippm.graph.fingerprint import fingerprint


def equal(first, second) -> bool:
    names = ("node_features", "edge_index", "node_offsets", "edge_offsets", "static_features", "cost_sums", "targets")
    return all(np.array_equal(getattr(first, name), getattr(second, name), equal_nan=True) for name in names)


def at_one_batch(graph: Graph, batch: int) -> Graph:
    """The graph as a file that fixes the batch gives it."""
    tensors = [replace(each, shape=fixed_shape(*(dim.at(batch) for dim in each.shape))) for each in graph.tensors]
    return replace(graph, tensors=tuple(tensors), fixed_batch=batch, fixed_batch_reason="It says so.")


def test_each_sample_is_its_graph_at_its_batch(labelled_models) -> None:
    labels, folder = labelled_models
    # In another order than model by model.
    order = [*labels[::2], *labels[1::2]]
    samples = build_samples(order, folder)
    assert len(samples) == len(labels)
    for index in (0, 5, 30, 47):
        label = order[index]
        cached = GraphCache(folder).load(label.recipe.model_key, batch=label.recipe.batch)
        assert cached is not None
        (expected,) = compute_features_of_batches(cached.graph, [label.recipe.batch])
        nodes = slice(*samples.node_offsets[index : index + 2])
        edges = slice(*samples.edge_offsets[index : index + 2])
        np.testing.assert_array_equal(samples.node_features[nodes], expected.node_features)
        np.testing.assert_array_equal(samples.edge_index[:, edges], expected.edge_index)
        np.testing.assert_array_equal(samples.static_features[index], expected.static_features)
        np.testing.assert_allclose(
            samples.cost_sums[index], compute_cost_sums(cached.graph, [label.recipe.batch])[0], rtol=1e-12
        )
        assert samples.labels[index].graph_hash == cached.fingerprint
        assert samples.targets[index, 1] == label.measurement.latency_ms
        np.testing.assert_array_equal(samples.nodes_of(np.array([index])), expected.node_features)
    assert samples.node_counts.sum() == len(samples.node_features)
    assert set(samples.families) == {"plain", "deep"}


def test_read_back_without_computing(labelled_models, monkeypatch) -> None:
    labels, folder = labelled_models
    made = build_samples(labels, folder)
    monkeypatch.setattr(graph_samples, "compute_features_of_batches", None)
    again = build_samples(labels, folder)
    assert equal(made, again)
    assert again.key == made.key
    # Other figures of the same models are another data set, of the same arrays.
    changed = replace(labels[0], measurement=replace(labels[0].measurement, latency_ms=9.0))
    other = build_samples([changed, *labels[1:]], folder)
    assert other.targets[0, 1] == 9.0
    assert other.key != made.key


def test_damaged_file_is_made_again(labelled_models, tmp_path) -> None:
    labels, folder = labelled_models
    for path in folder.glob("??/*"):
        target = tmp_path / path.relative_to(folder)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
    made = build_samples(labels, tmp_path)
    (stored,) = (tmp_path / "samples").iterdir()
    content = stored.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"PK\x03\x04"):
        stored.write_bytes(damaged)
        assert equal(build_samples(labels, tmp_path), made)


def test_edges_in_a_chain_are_other_samples(labelled_models) -> None:
    labels, folder = labelled_models
    chain, data = (build_samples(labels, folder, edges=edges) for edges in (EdgeMode.CHAIN, EdgeMode.DATA))
    assert chain.key != data.key
    assert (np.diff(chain.edge_offsets) == chain.node_counts - 1).all()


def test_what_cannot_be_read_is_left_out_and_named(labelled_models, monkeypatch) -> None:
    labels, folder = labelled_models
    lost = labels[4].recipe.model_key
    load = GraphCache.load
    monkeypatch.setattr(graph_samples, "build_graphs", lambda *_, **__: [])
    monkeypatch.setattr(
        GraphCache, "load", lambda cache, key, *, batch: None if key == lost else load(cache, key, batch=batch)
    )
    progress: list[tuple[int, int]] = []
    samples = build_samples(labels[:8], folder, on_progress=lambda done, total: progress.append((done, total)))
    assert [label.key for label in samples.labels] == [label.key for label in labels[:4] + labels[6:8]]
    assert samples.unread.keys() == {lost}
    assert progress[-1] == (4, 4)
    assert build_samples(labels[:8], folder).unread == samples.unread
    with pytest.raises(UsageError) as caught:
        build_samples(labels[4:6], folder)
    assert caught.value.code == "samples.empty"


def test_graphs_that_hold_for_one_batch_each(labelled_models, tmp_path, monkeypatch) -> None:
    labels, folder = labelled_models
    whole, cache = GraphCache(folder), GraphCache(tmp_path)
    for label in labels[:6]:
        entry = whole.load(label.recipe.model_key, batch=label.recipe.batch)
        assert entry is not None
        graph = entry.graph
        if label.recipe.model_key == labels[2].recipe.model_key:
            graph = at_one_batch(graph, label.recipe.batch)
        cache.save(label.recipe.model_key, graph, fingerprint=fingerprint(graph))
    expected, found = build_samples(labels[:6], folder), build_samples(labels[:6], tmp_path)
    assert found.unread == {}
    assert equal(expected, found)
    hashes = [label.graph_hash for label in found.labels]
    assert hashes[0] == hashes[1]
    assert hashes[2] != hashes[3]
    # A batch without a graph is left out alone.
    another = replace(labels[2], recipe=replace(labels[2].recipe, batch=4))
    monkeypatch.setattr(graph_samples, "build_graphs", lambda *_, **__: [])
    found = build_samples([another, *labels[:6]], tmp_path)
    assert [label.key for label in found.labels] == [label.key for label in labels[:6]]
    assert found.unread.keys() == {another.recipe.model_key}


def test_labels_without_a_figure_are_left_out(labelled_models) -> None:
    labels, folder = labelled_models
    bare = replace(labels[0].measurement, latency_ms=None, energy_j=None, memory_mb=None)
    assert len(build_samples([replace(labels[0], measurement=bare), labels[2]], folder)) == 1
    with pytest.raises(UsageError) as caught:
        build_samples([replace(labels[0], measurement=bare)], folder)
    assert caught.value.code == "samples.empty"


def test_unwritable(labelled_models, tmp_path) -> None:
    labels, folder = labelled_models
    for path in folder.glob("??/*"):
        target = tmp_path / path.relative_to(folder)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
    (tmp_path / "samples").write_text("")
    with pytest.raises(UsageError) as caught:
        build_samples(labels, tmp_path)
    assert caught.value.code == "samples.unwritable"


def test_parts(labelled_models) -> None:
    labels, folder = labelled_models
    samples = build_samples(labels, folder)
    parts = assign_parts(samples, seed=3)
    for part in Part:
        keys = {samples.labels[index].recipe.model_key for index in np.flatnonzero(parts == part)}
        others = {samples.labels[index].recipe.model_key for index in np.flatnonzero(parts != part)}
        assert not keys & others
    counts = np.bincount(parts, minlength=4)
    assert counts[Part.NONE] == 0
    assert np.abs(counts[:3] - np.array([0.7, 0.15, 0.15]) * len(samples)).max() <= 2
    assert not np.array_equal(parts, assign_parts(samples, seed=4))
