"""Rates of an architecture, fitted on labels that were made by rates."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("pyarrow")
from dippm.costs.conditions import Conditions, Layout
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.rates import Rates
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import export_parquet
from dippm.devices import find_device
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.graph import Graph, OpKind
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome, SoftwareStack
from dippm.predictors.calibration import Calibration
from dippm.training import architecture

_TRUE = {"tensor_conv": 0.3, "nchw_shuffle": 4.0, "group_norm_cycles": 2.0}
_DEVICE = find_device("H200")


def network(builder: Any, *, channels: int) -> Graph:
    """A convolution with a group norm and pooling; its width decides which of them takes most of the time."""
    n = builder.N
    x = builder.input(n, 32, 64, 64)
    square = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1)}
    x = builder.node(
        OpKind.CONV, [x, builder.weight(channels, 32, 3, 3)], n, channels, 64, 64, dilation=(1, 1), groups=1, **square
    )
    weight = builder.weight(channels)
    x = builder.node(
        OpKind.GROUP_NORM, [x, weight, weight], n, channels, 64, 64, groups=1, axes_size=channels * 64 * 64
    )
    builder.node(OpKind.AVG_POOL, [x], n, channels, 64, 64, **square)
    return builder.graph()  # type: ignore[no-any-return]


def make_label(channels: int, batch: int, latency_ms: float = 1.0, **measured: Any) -> Label:
    recipe = Recipe(
        collection="made-up",
        family=f"wide{channels // 256}",
        architecture="timm:resnet",
        arguments={"channels": channels},
        inputs=InputShapes(positional=(InputEntry(shape=(32, 64, 64)),)),
        batch=batch,
    )
    figures = {"latency_std_ms": 0.001 * latency_ms, "outcome": Outcome.OK, **measured}
    return Label(
        recipe=recipe,
        configuration=Configuration(batch=batch, conditions=Conditions.parse(precision="amp")),
        measurement=Measurement(
            device="H200",
            measured_at="",
            latency_ms=latency_ms,
            software=SoftwareStack(framework="torch 2.11.0"),
            **figures,
        ),
    )


@pytest.fixture(name="cache")
def _cache(tmp_path: Path, new_builder: Callable[[], Any]) -> GraphCache:
    cache = GraphCache(tmp_path / "graphs")
    for channels in (16, 64, 128, 256, 512, 768):
        graph = network(new_builder(), channels=channels)
        cache.save(make_label(channels, 1).recipe.model_key, graph, fingerprint=str(channels))
    return cache


@pytest.fixture(name="labels")
def _labels(cache: GraphCache) -> list[Label]:
    """Labels as the true rates would have them."""
    blank = [make_label(channels, batch) for channels in (16, 64, 128, 256, 512, 768) for batch in (8, 64, 256)]
    rows = architecture.read_rows(blank, cache)
    times = architecture.predict_ms(rows, _DEVICE, Rates().changed(architecture.TRACED | _TRUE), load_kernel_model())
    return [
        make_label(row.label.recipe.arguments["channels"], row.label.recipe.batch, float(time))
        for row, time in zip(rows, times, strict=True)
    ]


def test_only_rows_that_tell_of_the_device_are_read(cache: GraphCache) -> None:
    good = make_label(64, 8)
    scattered = make_label(64, 16, latency_std_ms=0.05)
    failed = make_label(64, 32, outcome=Outcome.NOT_FINITE)
    unknown = make_label(65, 8)
    again = replace(good, repeat=1)
    assert [row.label for row in architecture.read_rows([good, scattered, failed, unknown, again], cache)] == [good]


def test_a_part_of_the_captured_calls_is_read_however_they_scatter(cache: GraphCache) -> None:
    labels = [make_label(channels, 8, latency_std_ms=0.05) for channels in (16, 64, 128, 256, 512, 768)]
    captured = Conditions.parse(precision="amp", runtime="cuda-graph")
    turned = replace(captured, layout=Layout.NHWC)
    labels = [
        replace(label, configuration=replace(label.configuration, conditions=conditions))
        for label in labels
        for conditions in (captured, turned)
    ]
    chosen = [row.label for row in architecture.read_rows(labels, cache)]
    of_model = {label.recipe.model_key: int(label.recipe.model_key, 16) % 4 == 0 for label in labels}
    assert {label.recipe.model_key for label in chosen} == {key for key, is_chosen in of_model.items() if is_chosen}
    assert 0 < len(chosen) < len(of_model)
    assert all(label.configuration.conditions == captured for label in chosen)


def test_rates_that_made_the_times_are_found_again(cache: GraphCache, labels: list[Label]) -> None:
    rows, kernels = architecture.read_rows(labels, cache), load_kernel_model()
    own = architecture.fit_architecture(rows, _DEVICE, Rates(), kernels)
    predicted = architecture.predict_ms(rows, _DEVICE, replace(Rates(), **own), kernels)
    measured = np.array([row.measured_ms for row in rows])
    assert np.abs(np.log(predicted / measured)).max() < 0.1
    assert own["group_norm_cycles"] == pytest.approx(2.0, rel=0.15)
    assert own["pool_tap_cycles"] == architecture.TRACED["pool_tap_cycles"]


def test_the_command_writes_both_calibrations(
    cache: GraphCache,
    labels: list[Label],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shipped = [architecture.ARTEFACT_PATH, architecture.TRAINING_ARTEFACT_PATH]
    written = []
    for name, path in zip(("ARTEFACT_PATH", "TRAINING_ARTEFACT_PATH"), shipped, strict=True):
        blank = replace(Calibration.read(path), architectures={})
        written.append(tmp_path / path.name)
        replace(blank, rates=replace(blank.rates, measured={"7.5": {"pool": 0.5}})).write(written[-1])
        monkeypatch.setattr(architecture, name, written[-1])
    export_parquet(labels, tmp_path / "labels.parquet")
    architecture.main(["--labels", str(tmp_path / "labels.parquet"), "--cache", str(tmp_path / "graphs")])
    report = json.loads(capsys.readouterr().out)
    assert report["families left out"]["rows"] == len(labels)
    for path in written:
        found = Calibration.read(path)
        assert found.rates.measured["9.0"] == found.rates.measured["10.0"] == report["rates"]
        assert found.rates.measured["7.5"] == {"pool": 0.5}
        assert found.architectures["9.0"]["half_width"] == report["half_width"] > 0.0
