"""``dippm.adapt`` and what ``dippm.predict`` makes of its folder."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import dippm
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import export_parquet
from dippm.graph import Graph
from dippm.training import additive_adaptation
from dippm.training.additive_adaptation import AdaptationSettings

OwnDevice = tuple[list[Label], dippm.DeviceSpec]


@pytest.fixture(name="data", scope="module")
def _data(own_device: OwnDevice, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "labels.parquet"
    export_parquet(own_device[0], path)
    return path


@pytest.fixture(name="cache", scope="module")
def _cache(labelled_models: tuple[list[Label], Path]) -> Path:
    return labelled_models[1]


@pytest.fixture(name="graph", scope="module")
def _graph(own_device: OwnDevice, cache: Path) -> Graph:
    cached = GraphCache(cache).load(own_device[0][0].recipe.model_key, batch=1)
    assert cached is not None
    return cached.graph


@pytest.fixture(name="folder", scope="module")
def _folder(data: Path, own_device: OwnDevice, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("here"))
        patch.setattr(additive_adaptation, "AdaptationSettings", partial(AdaptationSettings, steps=40))
        report = dippm.adapt(data, device=own_device[1], cache=cache)
        assert report.folder == str(Path("dippm-trained") / "adapted-card-of-one-s-own")
        return Path(report.folder).absolute()


def test_device_and_conditions_of_the_labels_stand_for_what_is_left_out(folder: Path, graph: Graph) -> None:
    one = dippm.predict(graph, batch=65536, predictor=folder)
    assert isinstance(one, dippm.Prediction)
    assert (one.device, one.conditions.precision.value) == ("Card of one's own", "amp")
    assert [one] == dippm.predict(graph, batch=[65536], predictor=str(folder), device="card of one's own")
    elsewhere = dippm.predict(graph, batch=65536, device="RTX 4090", precision="amp")
    assert 1.2 < one.latency_ms / elsewhere.latency_ms < 1.6


def test_other_conditions_are_answered_and_warned_of(folder: Path, graph: Graph) -> None:
    for asked in ({"precision": "fp32"}, {"mode": "training", "optimizer": "adamw", "accumulation": 2}):
        found = dippm.predict(graph, batch=65536, predictor=folder, **asked)
        assert found.device == "Card of one's own"
        assert any("No whole model was measured on Card of one's own" in note for note in found.warnings)


@pytest.mark.parametrize("device", ["RTX 4090", ["RTX 4090"], ["card of one's own", "T4"], []])
def test_other_devices_are_refused(folder: Path, graph: Graph, device: object) -> None:
    with pytest.raises(dippm.UsageError) as caught:
        dippm.predict(graph, predictor=folder, device=device)
    assert caught.value.code == "predictor.mismatch"


def test_a_folder_of_something_else_is_left_alone(
    data: Path, own_device: OwnDevice, cache: Path, tmp_path: Path
) -> None:
    (tmp_path / "thesis.txt").write_text("three years")
    with pytest.raises(dippm.UsageError) as caught:
        dippm.adapt(data, device=own_device[1], cache=cache, out=tmp_path)
    assert caught.value.code == "train.exists"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_card_that_nobody_described_is_an_error_with_a_way_out(data: Path, cache: Path) -> None:
    with pytest.raises(dippm.UnsupportedError, match="--device-file"):
        dippm.adapt(data, cache=cache)


@pytest.mark.parametrize("damage", ["{", "{}", '{"format": 1, "device": {}, "conditions": {}}'])
def test_a_damaged_folder_is_an_error(damage: str, graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "adapted.json").write_text(damage)
    with pytest.raises(dippm.DippmError) as caught:
        dippm.predict(graph, predictor=tmp_path)
    assert caught.value.code == "artefact.unreadable"
