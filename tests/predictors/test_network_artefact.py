"""A predictor's folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dippm.errors import DippmError, UnsupportedError, UsageError
from dippm.features.pmgns import EdgeMode
from dippm.features.scaling import Scaling
from dippm.predictors.network_artefact import NetworkArtefact, read_weights, write_weights
from dippm.predictors.pmgns import PmgnsPredictor


def make_artefact(model: str = "pmgns") -> NetworkArtefact:
    rng = np.random.default_rng(0)
    return NetworkArtefact(
        model=model,
        metrics=("memory_mb", "latency_ms"),
        edges=EdgeMode.CHAIN,
        scaling=None
        if model == "gbdt"
        else Scaling.fit(rng.random((9, 32)), rng.random((4, 5)), 1 + rng.random((4, 3))),
        spreads={"latency_ms": 0.1},
        labels={"device": "H200"},
        errors_percent={"test": {"mean": 3.5}},
        settings={"epochs": 3},
        provenance={"seed": 0},
    )


@pytest.mark.parametrize("model", ["pmgns", "gbdt"])
def test_round_trip(tmp_path: Path, model: str) -> None:
    made = make_artefact(model)
    made.write(tmp_path)
    read = NetworkArtefact.read(tmp_path)
    for name in ("model", "metrics", "edges", "spreads", "labels", "errors_percent", "settings", "provenance"):
        assert getattr(read, name) == getattr(made, name)
    if made.scaling is None:
        assert read.scaling is None
    else:
        assert read.scaling is not None
        assert read.scaling.to_dict() == made.scaling.to_dict()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": 99}', '{"format": 1, "scaling": {}}'])
def test_what_is_no_manifest(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.json").write_text(content)
    with pytest.raises(DippmError) as caught:
        NetworkArtefact.read(tmp_path)
    assert caught.value.code == "artefact.unreadable"


def test_weights(tmp_path: Path) -> None:
    weights = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.ones(1, dtype=np.float32)}
    write_weights(tmp_path, weights)
    read = read_weights(tmp_path)
    assert read.keys() == weights.keys()
    assert all(np.array_equal(read[name], weights[name]) for name in weights)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(DippmError) as caught:
        read_weights(tmp_path)
    assert caught.value.code == "artefact.unreadable"
    with pytest.raises(DippmError):
        read_weights(tmp_path / "nowhere")


def test_only_pmgns_predicts(tmp_path: Path) -> None:
    make_artefact("gbdt").write(tmp_path)
    with pytest.raises(UnsupportedError) as caught:
        PmgnsPredictor.load(tmp_path)
    assert caught.value.code == "artefact.model"
    (tmp_path / "empty").mkdir()
    for folder, words in (("nowhere", "There is no folder"), ("empty", "No predictor lies in")):
        with pytest.raises(UsageError, match=words) as missing:
            PmgnsPredictor.load(tmp_path / folder)
        assert missing.value.code == "predictor.missing"
