from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from dippm.training import additive_protocol
from dippm.training.additive_fit import AdditiveSettings
from dippm.training.additive_labels import random_parts
from dippm.training.additive_protocol import HeldOut, predict_families, predict_random
from dippm.training.additive_samples import AdditiveSamples


@pytest.fixture(name="settings", scope="module")
def _settings(additive_settings: AdditiveSettings) -> AdditiveSettings:
    return replace(additive_settings, members=1)


def _same(one: HeldOut, other: HeldOut) -> bool:
    return all(np.array_equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(HeldOut))


def test_predictions_are_of_what_was_not_trained_on(
    step_samples: AdditiveSamples, settings: AdditiveSettings, tmp_path: Path
) -> None:
    held = predict_random(step_samples, settings, folder=tmp_path)
    _, validation, test = random_parts(step_samples, seed=settings.seed)
    assert (held.validation.tolist(), held.test.tolist()) == (validation.tolist(), test.tolist())
    for name in ("validation", "test"):
        for part in ("ms", "distance"):
            assert getattr(held, f"{name}_{part}").shape == getattr(held, name).shape


def test_each_family_is_tested_once_and_nothing_validated(
    step_samples: AdditiveSamples, settings: AdditiveSettings, tmp_path: Path
) -> None:
    folds = predict_families(step_samples, settings, folds=2, folder=tmp_path)
    assert sorted(np.concatenate([held.test for held in folds]).tolist()) == step_samples.usable.tolist()
    assert all(len(held.validation) == len(held.validation_ms) == 0 for held in folds)


def test_what_is_kept_is_not_trained_again(
    step_samples: AdditiveSamples, settings: AdditiveSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = predict_random(step_samples, settings, folder=tmp_path)
    (kept,) = tmp_path.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(additive_protocol, "fit_additive", None)
        assert _same(predict_random(step_samples, settings, folder=tmp_path), held)
        for changed in (replace(settings, epochs=3), replace(settings, seed=1)):
            with pytest.raises(TypeError):  # would train
                predict_random(step_samples, changed, folder=tmp_path)
    # Cut off: made again.
    kept.write_bytes(kept.read_bytes()[:100])
    assert _same(predict_random(step_samples, settings, folder=tmp_path), held)
