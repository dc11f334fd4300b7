"""The folder of an adapted predictor; what adapting comes to is tested where it is made."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dippm.costs.conditions import Conditions
from dippm.devices import find_device
from dippm.errors import DippmError
from dippm.predictors.adapted import AdaptedManifest, AdaptedPredictor, is_adapted
from dippm.predictors.additive_artefact import ARTEFACT_FOLDER


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """The shipped networks and calibrations as those of a card of one's own."""
    folder = tmp_path / "adapted"
    shutil.copytree(ARTEFACT_FOLDER, folder)
    AdaptedManifest(
        device=replace(find_device("RTX 4090"), name="Card of one's own", aliases=("mine",)),
        conditions=Conditions.parse(mode="training", optimizer="adam", precision="amp"),
        report={"host_ratio": 2.0},
        provenance={"seed": 0},
    ).write(folder)
    return folder


def test_a_manifest_is_read_back_with_its_device(folder: Path) -> None:
    manifest = AdaptedManifest.read(folder)
    assert manifest.device == replace(find_device("RTX 4090"), name="Card of one's own", aliases=("mine",))
    assert manifest.conditions == Conditions.parse(mode="training", optimizer="adam", precision="amp")
    assert (manifest.report, manifest.provenance) == ({"host_ratio": 2.0}, {"seed": 0})
    assert is_adapted(folder)
    assert not is_adapted(folder.parent)


def test_slices_of_a_device_are_kept(tmp_path: Path) -> None:
    manifest = AdaptedManifest(device=find_device("A100"), conditions=Conditions(), report={}, provenance={})
    manifest.write(tmp_path)
    assert AdaptedManifest.read(tmp_path).device == find_device("A100")


def test_it_is_for_its_device_by_any_name(folder: Path) -> None:
    predictor = AdaptedPredictor.load(folder)
    assert all(predictor.is_for(name) for name in ("Card of one's own", "card OF one's own ", "MINE"))
    assert not any(predictor.is_for(name) for name in ("RTX 4090", "A100", "nothing"))


def test_what_a_question_leaves_out_is_as_the_labels_were(folder: Path) -> None:
    predictor = AdaptedPredictor.load(folder)
    assert predictor.conditions_for({})["optimizer"] == "adam"
    given = predictor.conditions_for({"precision": "fp32"})
    assert (given["mode"], given["precision"]) == ("training", "fp32")
    # Another mode has no use for the labels' optimizer.
    assert "optimizer" not in predictor.conditions_for({"mode": "inference"})


@pytest.mark.parametrize("damage", ["missing", "format", "device", "conditions", "no object"])
def test_a_damaged_manifest_is_an_error(folder: Path, damage: str) -> None:
    path = folder / "adapted.json"
    held = json.loads(path.read_text(encoding="utf-8"))
    if damage == "missing":
        path.unlink()
    else:
        if damage == "format":
            held["format"] = 99
        elif damage == "device":
            held["device"].pop("mig_profiles")
        elif damage == "conditions":
            held["conditions"]["precision"] = "fp3"
        path.write_text(json.dumps([] if damage == "no object" else held), encoding="utf-8")
    with pytest.raises(DippmError) as caught:
        AdaptedPredictor.load(folder)
    assert caught.value.code == "artefact.unreadable"


@pytest.mark.parametrize(
    "name",
    ["additive_inference.safetensors", "additive_training.json", "additive_inference-9.0.json", "physics.json"],
)
@pytest.mark.parametrize("is_missing", [True, False])
def test_what_is_damaged_is_adapted_again(folder: Path, name: str, *, is_missing: bool) -> None:
    if is_missing:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes((folder / name).read_bytes()[:100])
    with pytest.raises(DippmError) as caught:
        AdaptedPredictor.load(folder)
    assert caught.value.code == "artefact.unreadable"
    assert str(folder / name) in str(caught.value)
    assert str(caught.value).endswith(". Adapt to Card of one's own again with `dippm train --adapt`.")
    assert "Rebuild" not in str(caught.value)
    assert "Reinstall" not in str(caught.value)
