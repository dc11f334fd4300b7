from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from dippm.costs.conditions import Mode, Runtime
from dippm.costs.rates import Rates
from dippm.errors import DippmError
from dippm.predictors.additive_artefact import (
    OWN_REGIMES,
    REGIMES,
    AdditiveArtefact,
    Regime,
    manifest_path,
    read_tensors,
    write_tensors,
)


def _artefact(**changes: Any) -> AdditiveArtefact:
    values: dict[str, Any] = {
        "mode": Mode.TRAINING,
        "runtime": Runtime.EAGER,
        "columns": ("a", "b"),
        "members": 2,
        "rates": Rates(stream=0.5),
        "distances": (0.5, 1.0),
        "half_widths": (0.1, 0.3),
        "measured": {"devices": ["GeForce RTX 3090"]},
        "test": {"mape_percent": 4.5},
        "settings": {"epochs": 1},
        "provenance": {"command": "python"},
    }
    return AdditiveArtefact(**{**values, **changes})


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = manifest_path(Regime(mode=Mode.TRAINING), tmp_path)
    written = _artefact()
    written.write(path)
    read = AdditiveArtefact.read(path)
    for field in fields(AdditiveArtefact):
        assert getattr(read, field.name) == getattr(written, field.name), field.name
    assert read.regime == Regime(mode=Mode.TRAINING)


def test_each_regime_has_a_file_of_its_own() -> None:
    regimes = (*REGIMES, *OWN_REGIMES)
    assert len({manifest_path(regime) for regime in regimes}) == len(regimes) == 5


def test_networks_of_an_architecture_say_so(tmp_path: Path) -> None:
    written = _artefact(mode=Mode.INFERENCE, architectures=("9.0", "10.0"))
    assert written.regime == OWN_REGIMES[0]
    path = manifest_path(written.regime, tmp_path)
    assert path.name == "additive_inference-9.0.json"
    written.write(path)
    assert AdditiveArtefact.read(path).architectures == ("9.0", "10.0")


def test_weights_are_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    tensors = {
        "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([0.1], dtype=np.float32),
        "none": np.zeros((0, 4), dtype=np.float32),
    }
    write_tensors(path, tensors)
    by_package = load_file(tmp_path / "some.safetensors")
    ours = read_tensors(path)
    assert list(ours) == list(tensors)
    for name, values in tensors.items():
        assert (ours[name] == values).all()
        assert (by_package[name] == values).all()
        assert ours[name].shape == values.shape


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 8, b"\x02\x00\x00\x00\x00\x00\x00\x00[]", b"\x09" + b"\0" * 7 + b"{}"]
)
def test_damaged_weights_are_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "some.safetensors").write_bytes(content)
    with pytest.raises(DippmError) as caught:
        read_tensors(tmp_path / "some.json")
    assert caught.value.code == "artefact.unreadable"


def test_weights_cut_off_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    write_tensors(path, {"a": np.ones(100, dtype=np.float32)})
    whole = (tmp_path / "some.safetensors").read_bytes()
    (tmp_path / "some.safetensors").write_bytes(whole[:-40])
    with pytest.raises(DippmError) as caught:
        read_tensors(path)
    assert caught.value.code == "artefact.unreadable"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 99}'])
def test_damaged_manifests_are_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "some.json"
    path.write_text(content)
    with pytest.raises(DippmError) as caught:
        AdditiveArtefact.read(path)
    assert caught.value.code == "artefact.unreadable"
