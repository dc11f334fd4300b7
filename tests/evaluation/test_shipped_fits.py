"""The shipped verdict on borders, from a table typed by hand and a graph built by hand."""

from __future__ import annotations

import pytest

import dippm
from dippm.costs.conditions import Layout, Mode
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.imports.timm import labels_of_timm_rows
from dippm.datasets.timm_tables import read_timm_tables
from dippm.errors import UsageError
from dippm.evaluation.border_pairs import border_pairs, inference_borders
from dippm.evaluation.shipped_fits import shipped_verdicts
from dippm.graph import OpKind

_HEADERS = {
    "train": "model,train_samples_per_sec,train_step_time,train_batch_size,train_img_size,param_count\n",
    "infer": "model,infer_samples_per_sec,infer_step_time,infer_batch_size,infer_img_size,param_count\n",
}
_OLD = Software(torch=(1, 12), cuda=(11, 3))


def _write_table(folder, name, *rows):
    text = _HEADERS[name.split("-")[0]] + "".join(f"{model},1.0,1.0,{batch},8,2.0\n" for model, batch in rows)
    (folder / f"benchmark-{name}.csv").write_text(text)


@pytest.fixture(name="tables")
def _tables(tmp_path):
    folder = tmp_path / "timm"
    folder.mkdir()
    return folder


@pytest.fixture(name="network")
def _network(builder):
    """Two layers on tokens, whose training steps fill 24 GB at some hundred samples."""
    n = builder.N
    x = builder.input(n, 4096, 1000)
    for _ in range(2):
        x = builder.node(OpKind.LINEAR, [x, builder.weight(1000, 1000)], n, 4096, 1000)
        x = builder.node(OpKind.GELU, [x], n, 4096, 1000)
    return builder.graph(x)


def _cache(folder, tables, graph):
    cache = GraphCache(folder)
    for label in labels_of_timm_rows(read_timm_tables(tables)):
        cache.save(label.recipe.model_key, graph, fingerprint="net")
    return cache


@pytest.mark.parametrize("software", [_OLD, DEFAULT_SOFTWARE])
def test_the_verdicts_are_those_of_fits(tables, tmp_path, network, software):
    rows = [("first", 512), ("small", 64), ("middle", 192), ("large", 384)]
    _write_table(tables, "train-amp-nchw-pt112-cu113-rtx3090", *rows)
    cache = _cache(tmp_path / "graphs", tables, network)
    pairs, _ = border_pairs(tables, cache)
    assert len(pairs) == 3
    verdicts = shipped_verdicts(list(reversed(pairs)), cache, software=software)
    for pair, verdict in zip(reversed(pairs), verdicts, strict=True):
        asked = [
            dippm.fits(
                network, device="RTX 3090", batch=batch, mode="training", precision="amp", software=str(software)
            ).verdict
            for batch in (pair.label.recipe.batch, pair.failed_batch)
        ]
        assert [verdict.fitted, verdict.failed] == asked
    assert len({verdict.fitted for verdict in verdicts}) > 1


def test_borders_of_inference_are_drawn_from_eager_tables(tables, tmp_path, network):
    rows = [("first", 1024), ("small", 64), ("large", 768)]
    _write_table(tables, "infer-amp-nchw-pt240-cu124-rtx4090", *rows)
    _write_table(tables, "infer-amp-nchw-pt240-cu124-rtx4090-dynamo", *rows)
    _write_table(tables, "train-amp-nchw-pt112-cu113-rtx3090", *rows)
    cache = _cache(tmp_path / "graphs", tables, network)
    borders = sorted(inference_borders(tables, cache), key=lambda border: border.failed_batch)
    assert [(border.model, border.label.recipe.batch, border.failed_batch) for border in borders] == [
        ("small", 64, 96),
        ("large", 768, 1024),
    ]
    assert {border.label.configuration.conditions.mode for border in borders} == {Mode.INFERENCE}
    assert {border.layout for border in borders} == {Layout.NCHW}
    assert {border.label.graph_hash for border in borders} == {"net"}
    assert not any(border.is_refused for border in borders)
    verdicts = shipped_verdicts(borders, cache, software=DEFAULT_SOFTWARE)
    assert verdicts[0].fitted == "yes"
    assert inference_borders(tables, GraphCache(tmp_path / "none")) == []


def test_a_graph_that_is_missing_is_named(tables, tmp_path, network):
    _write_table(tables, "train-amp-nchw-pt112-cu113-rtx3090", ("first", 512), ("small", 64))
    pairs, _ = border_pairs(tables, _cache(tmp_path / "graphs", tables, network))
    with pytest.raises(UsageError, match="small") as caught:
        shipped_verdicts(pairs, GraphCache(tmp_path / "none"), software=_OLD)
    assert caught.value.code == "graph_cache.missing"
