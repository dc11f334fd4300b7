from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dippm.api.kept_trainings import KeptTrainings

PARTS = np.zeros(4, np.int8)


class Training:
    """Predicts how often it was asked."""

    def __init__(self) -> None:
        self.folders: list[Path] = []

    def __call__(self, samples: Any, parts: Any, settings: Any, folder: Path, *, resume: bool) -> Any:
        assert resume
        folder.mkdir(parents=True, exist_ok=True)
        self.folders.append(folder)
        return np.full(samples.targets.shape, float(len(self.folders)))


def samples(key: str = "k") -> Any:
    return SimpleNamespace(key=key, targets=np.zeros((4, 3)))


def settings(**changes: object) -> Any:
    described = {"model": "pmgns", "epochs": 3, **changes}
    return SimpleNamespace(model="pmgns", to_dict=lambda: described)


def test_what_was_trained_once_is_read_back(tmp_path: Path) -> None:
    train = Training()
    for _ in range(2):
        # Another object, as in the next run of the program.
        found = KeptTrainings(tmp_path, train).predict(samples(), PARTS, settings())
        assert (found == 1.0).all()
    (folder,) = train.folders
    assert folder.parent == tmp_path
    assert folder.name.startswith("pmgns-")


@pytest.mark.parametrize(
    "changed",
    [
        {"samples": samples("other")},
        {"parts": np.array([0, 0, 0, 1], np.int8)},
        {"settings": settings(epochs=4)},
    ],
)
def test_whatever_changes_the_training_is_trained_anew(tmp_path: Path, changed: dict[str, Any]) -> None:
    train = Training()
    kept = KeptTrainings(tmp_path, train)
    kept.predict(samples(), PARTS, settings())
    given = {"samples": samples(), "parts": PARTS, "settings": settings()} | changed
    assert (kept.predict(given["samples"], given["parts"], given["settings"]) == 2.0).all()
    assert len(set(train.folders)) == 2


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY", b"rubbish"])
def test_predictions_that_were_cut_off_are_made_again(tmp_path: Path, damage: bytes) -> None:
    train = Training()
    kept = KeptTrainings(tmp_path, train)
    kept.predict(samples(), PARTS, settings())
    (train.folders[0] / "predictions.npy").write_bytes(damage)
    assert (kept.predict(samples(), PARTS, settings()) == 2.0).all()
    np.save(train.folders[0] / "predictions.npy", np.zeros((3, 3)))
    assert (kept.predict(samples(), PARTS, settings()) == 3.0).all()
    assert len(set(train.folders)) == 1
