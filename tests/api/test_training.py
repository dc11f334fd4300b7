"""What is checked before anything is trained; trainings themselves are tested where they are made."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dippm.api import training
from dippm.errors import DippmError, MissingExtraError, UsageError


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"optimizer": "adam"}, "optimizer.unused"),
        ({"edges": "both"}, "edges.unknown"),
        ({"epochs": 0}, "train.settings"),
    ],
)
def test_what_is_wrong_is_said_before_labels_are_opened(options: dict[str, Any], code: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        training.train(data=tmp_path / "absent.parquet", **options)
    assert caught.value.code == code


def test_no_folder_of_something_else_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dippm.training import adapt_device, device_labels

    asked: list[Path] = []
    monkeypatch.setattr(training, "open_labels", lambda _: nullcontext([]))
    monkeypatch.setattr(device_labels, "choose_device", lambda *_: ([], SimpleNamespace(name="My Card (8 GB)")))
    monkeypatch.setattr(adapt_device, "adapt_device", lambda own, spec, folder, **_: asked.append(folder))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError) as caught:
        training.adapt("labels", out=tmp_path)
    assert caught.value.code == "train.exists"
    assert asked == []
    training.adapt("labels", out=tmp_path / "new")
    monkeypatch.chdir(tmp_path)
    training.adapt("labels")
    assert asked == [tmp_path / "new", Path("dippm-trained/adapted-my-card-8-gb")]


@pytest.mark.parametrize(
    ("out", "code"), [("file", "train.exists"), ("file/out", "train.unwritable"), ("file/a/b", "train.unwritable")]
)
def test_a_folder_that_cannot_be_is_said_before_labels_are_opened(out: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as caught:
        training.adapt(tmp_path / "absent.parquet", out=tmp_path / out)
    assert caught.value.code == code


def test_adapting_without_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(training, "find_spec", lambda name: None if name == "torch" else find(name))
    with pytest.raises(MissingExtraError) as caught:
        training.adapt("labels")
    assert (caught.value.package, caught.value.extra) == ("torch", "train")


def test_a_folder_without_a_predictor_is_said(tmp_path: Path) -> None:
    with pytest.raises(DippmError) as caught:
        training.load_predictor(tmp_path)
    assert caught.value.code == "predictor.missing"
