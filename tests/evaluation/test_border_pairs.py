"""Pairs at the border of a card's memory, from a table typed by hand and a graph built by hand."""

from __future__ import annotations

import pytest

from dippm.costs import MemoryTimeline, Workload, live_memory
from dippm.costs.conditions import Layout, Optimizer
from dippm.costs.memory import reserved_bytes
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.imports.timm import labels_of_timm_rows
from dippm.datasets.timm_tables import read_timm_tables
from dippm.evaluation.border_pairs import border_pairs, needed_mb
from dippm.graph import OpKind

_HEADER = "model,train_samples_per_sec,train_step_time,train_batch_size,train_img_size,param_count\n"
_MIB = 2**20


def _write_table(folder, *rows, layout="nchw"):
    path = folder / f"benchmark-train-amp-{layout}-pt112-cu113-rtx3090.csv"
    path.write_text(_HEADER + "".join(f"{model},1.0,1.0,{batch},8,{millions}\n" for model, batch, millions in rows))


def _network(builder):
    """Two layers of a million weights each on tokens."""
    n = builder.N
    x = builder.input(n, 64, 1000)
    for _ in range(2):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(1000, 1000)], n, 64, 1000)
        x = builder.node(OpKind.GELU, [x], n, 64, 1000)
    return builder.graph(x)


def _cache(folder, tables, graph):
    cache = GraphCache(folder)
    for label in labels_of_timm_rows(read_timm_tables(tables)):
        cache.save(label.recipe.model_key, graph, fingerprint="net")
    return cache


@pytest.fixture(name="tables")
def _tables(tmp_path):
    folder = tmp_path / "timm"
    folder.mkdir()
    return folder


def test_a_pair_holds_the_batch_of_the_row_and_the_next_larger_one(builder, tables, tmp_path):
    _write_table(tables, ("first", 512, 2.0), ("small", 64, 2.0))
    _write_table(tables, ("first", 512, 2.0), ("small", 48, 2.0), layout="nhwc")
    pairs, left_out = border_pairs(tables, _cache(tmp_path / "graphs", tables, _network(builder)))
    assert [(pair.model, pair.layout, pair.label.recipe.batch, pair.failed_batch) for pair in pairs] == [
        ("small", Layout.NCHW, 64, 96),
        ("small", Layout.NHWC, 48, 64),
    ]
    assert all(pair.fitted_mb < pair.failed_mb for pair in pairs)
    assert pairs[0].label.graph_hash == "net"
    assert left_out == {}


def test_gradients_and_momentum_are_held_throughout(builder, tables, tmp_path):
    _write_table(tables, ("first", 512, 2.0), ("small", 1, 2.0))
    ((pair,), _) = border_pairs(tables, _cache(tmp_path / "graphs", tables, _network(builder)))
    weights = 2 * 1000 * 1000 * 4 / _MIB
    # Weights, gradients, momentum, and autocast's copies in half the bytes.
    assert pair.fitted_mb > 3.5 * weights


@pytest.mark.parametrize(
    ("millions", "has_graph", "reason"),
    [(3.0, True, "million weights"), (2.0, False, "not in the cache")],
)
def test_what_was_not_measured_is_left_out(builder, tables, tmp_path, millions, has_graph, reason):
    _write_table(tables, ("first", 512, 2.0), ("small", 64, millions))
    cache = _cache(tmp_path / "graphs", tables, _network(builder)) if has_graph else GraphCache(tmp_path / "none")
    pairs, left_out = border_pairs(tables, cache)
    assert pairs == []
    assert reason in left_out["small"]


def test_what_is_needed_suffices_and_little_less_does_not(builder):
    training = make_training_graph(_network(builder), TrainingSettings(optimizer=Optimizer.ADAMW))
    timeline = MemoryTimeline.from_workload(Workload.from_graph(training.graph, training.precision))
    needed = needed_mb(timeline, 256)
    live = live_memory(timeline, 256).peak_bytes[0] / _MIB
    assert live <= needed <= reserved_bytes(timeline, 256)[0] / _MIB
    assert reserved_bytes(timeline, 256, capacity_bytes=int((needed + 1) * _MIB))[0] > 0
    assert reserved_bytes(timeline, 256, capacity_bytes=int((live - 1) * _MIB))[0] == -1
