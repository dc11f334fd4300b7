"""What borders leave open of the memory of an inference, and the spreads chosen on it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.imports.timm import labels_of_timm_rows
from dippm.datasets.timm_tables import read_timm_tables
from dippm.errors import UsageError
from dippm.evaluation.border_pairs import inference_borders
from dippm.evaluation.inference_fits import OpenRoom, choose_spreads, main, open_rooms
from dippm.graph import OpKind

_HEADER = "model,infer_samples_per_sec,infer_step_time,infer_batch_size,infer_img_size,param_count\n"


@pytest.fixture(name="tables")
def _tables(tmp_path):
    folder = tmp_path / "timm"
    folder.mkdir()
    rows = "".join(f"{model},1.0,1.0,{batch},8,1.0\n" for model, batch in (("first", 1024), ("small", 64)))
    (folder / "benchmark-infer-amp-nhwc-pt240-cu124-rtx3090.csv").write_text(_HEADER + rows)
    return folder


@pytest.fixture(name="cache")
def _cache(tables, builder, tmp_path):
    """A model whose activations take 256 MiB a sample: 64 of them fit 24 GB and 96 hardly do."""
    n = builder.N
    x = builder.input(n, 1024, 1000)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(1000, 1000)], n, 1024, 1000)
    for _ in range(2):
        x = builder.node(OpKind.RELU, [x], n, 64 * 1024, 1000)
    graph = builder.graph(x)
    cache = GraphCache(tmp_path / "graphs")
    for label in labels_of_timm_rows(read_timm_tables(tables)):
        cache.save(label.recipe.model_key, graph, fingerprint="net")
    return cache


def test_a_border_bounds_both_ends(tables, cache):
    borders = inference_borders(tables, cache)
    (room,) = open_rooms(borders, cache, margin_low_mb=0.0, margin_high_mb=0.0)
    # One and the same room, seen from two batches: their needs are as 64 to 96.
    assert -room.less - room.more == pytest.approx(math.log(96 / 64), rel=0.02)
    (wary,) = open_rooms(borders, cache, margin_low_mb=500.0, margin_high_mb=500.0)
    assert wary.more < room.more
    assert wary.less < room.less


def test_a_refused_batch_says_nothing(tables, cache):
    borders = [replace(border, is_refused=True) for border in inference_borders(tables, cache)]
    assert borders
    assert open_rooms(borders, cache, margin_low_mb=0.0, margin_high_mb=0.0) == []


def test_spreads_contradict_one_in_twenty():
    rooms = [OpenRoom(more=number / 100 - 0.5, less=number / 200 - 0.3) for number in range(100)]
    more, less = choose_spreads(rooms)
    assert sum(room.more > more for room in rooms) == 5
    assert (more, less) == (0.44, 0.17)


def test_spreads_are_never_negative():
    assert choose_spreads([OpenRoom(more=-0.4, less=-0.2)]) == (0.0, 0.0)


def test_the_command_says_what_each_half_would_choose(tables, cache, tmp_path, monkeypatch, capsys):
    (border,) = inference_borders(tables, cache)
    # Models of a half, by how much what is uncertain must be larger than predicted for the failure.
    halves = [replace(border, failed_batch=batch) for batch in (80, 72)]
    monkeypatch.setattr("dippm.evaluation.inference_fits.inference_borders", lambda *_: halves)
    monkeypatch.setattr(
        "dippm.evaluation.inference_fits.split_pairs", lambda borders, **_: ([borders[0]], [borders[1]])
    )
    monkeypatch.setattr("dippm.evaluation.inference_fits.data_folder", lambda: tables.parent)
    main(["--cache", str(tmp_path / "graphs")])
    told = json.loads(capsys.readouterr().out)
    first, second = told["halves"]
    assert (told["borders"], first["borders"], second["borders"]) == (2, 1, 1)
    # That 72 samples failed asks for more than that 80 did.
    assert first["memory_spread"] < second["memory_spread"] == told["memory_spread"]
    assert first["other_failures_contradicted_percent"] == 100.0
    assert second["other_failures_contradicted_percent"] == 0.0


def test_there_must_be_borders():
    with pytest.raises(UsageError) as caught:
        choose_spreads([])
    assert caught.value.code == "labels.none"
