"""Errors of the additive network on models and families that it has not seen: fits and their predictions."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dippm.datasets.array_file import read_arrays, write_arrays
from dippm.training.additive_fit import AdditiveSettings, fit_additive
from dippm.training.additive_labels import family_folds, random_parts
from dippm.training.additive_novelty import describe_samples, find_neighbours
from dippm.training.additive_samples import AdditiveSamples

__all__ = ["HeldOut", "predict_families", "predict_models", "predict_random", "with_layers"]

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]

_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HeldOut:
    """Predictions of samples that a network was not trained on.

    Args:
        validation: Samples that choices and intervals may be made on; empty where none were set apart.
        validation_ms: Their predictions.
        validation_distance: How far each is from what was trained on.
        test: Samples to test on.
        test_ms: Their predictions.
        test_distance: How far each is from what was trained on.
    """

    validation: IndexArray
    validation_ms: FloatArray
    validation_distance: FloatArray
    test: IndexArray
    test_ms: FloatArray
    test_distance: FloatArray


def predict_random(samples: AdditiveSamples, settings: AdditiveSettings, *, folder: Path) -> HeldOut:
    """Fit on 80 % of the models, drawn by the seed of the settings; predict the others.

    Args:
        samples: All samples.
        settings: Settings.
        folder: Where predictions are kept; what is there of the same samples and settings is read back.
    """
    training, validation, test = random_parts(samples, seed=settings.seed)
    return _predict(samples, training, validation, test, settings, folder=folder)


def predict_families(
    samples: AdditiveSamples, settings: AdditiveSettings, *, folds: int, folder: Path
) -> list[HeldOut]:
    """Leave families out, fold by fold, until each was left out once.

    Args:
        samples: All samples.
        settings: Settings; each fold is a training of its own.
        folds: Groups of families.
        folder: Where predictions are kept.
    """
    return [
        _predict(samples, training, _NONE, test, settings, folder=folder, holds_families=True)
        for training, test in family_folds(samples, folds=folds)
    ]


def with_layers(
    samples: AdditiveSamples, training: IndexArray, held: IndexArray, *, holds_families: bool = False
) -> IndexArray:
    """What to train on where calls are held out: other calls, and layers of models that none of those held out is.

    Args:
        samples: All samples.
        training: Calls to train on.
        held: Calls that are held out.
        holds_families: Whether their families are.
    """
    recipes = [samples.labels[sample].recipe for sample in held]
    models = {recipe.model_key for recipe in recipes}
    families = {recipe.lineage for recipe in recipes} if holds_families else set()
    free = [
        sample
        for sample in samples.layers
        for recipe in [samples.labels[sample].recipe]
        if recipe.model_key not in models and recipe.lineage not in families
    ]
    return np.concatenate([training, np.array(free, dtype=np.int64)])


def predict_models(samples: AdditiveSamples, settings: AdditiveSettings, *, folds: int, folder: Path) -> list[HeldOut]:
    """Leave models out, fold by fold, until each was left out once.

    Args:
        samples: All samples.
        settings: Settings; each fold is a training of its own.
        folds: Groups of models.
        folder: Where predictions are kept.
    """
    calls = np.setdiff1d(np.arange(len(samples)), samples.layers)
    fold = np.array([int(samples.labels[call].recipe.model_key, 16) % folds for call in calls])
    parts = [(calls[fold != number], calls[fold == number]) for number in range(folds)]
    return [_predict(samples, training, _NONE, test, settings, folder=folder) for training, test in parts]


def _predict(
    samples: AdditiveSamples,
    training: IndexArray,
    validation: IndexArray,
    test: IndexArray,
    settings: AdditiveSettings,
    *,
    folder: Path,
    holds_families: bool = False,
) -> HeldOut:
    learnt = with_layers(samples, training, np.concatenate([validation, test]), holds_families=holds_families)
    made_of = [samples.key, asdict(settings), learnt.tolist(), validation.tolist(), test.tolist()]
    key = hashlib.sha256(json.dumps(made_of, separators=(",", ":")).encode()).hexdigest()[:16]
    path = folder / f"predictions-{key}.npz"
    stored = read_arrays(path)
    if stored is not None and stored.keys() == {field.name for field in fields(HeldOut)}:
        return HeldOut(**stored)
    fitted = fit_additive(samples, learnt, settings)
    descriptors = describe_samples(samples, fitted.scale)
    novelty = find_neighbours(descriptors, training)
    held = HeldOut(
        validation=validation,
        validation_ms=fitted.predict_ms(samples, validation),
        validation_distance=novelty.distance(descriptors[validation]),
        test=test,
        test_ms=fitted.predict_ms(samples, test),
        test_distance=novelty.distance(descriptors[test]),
    )
    write_arrays(path, {field.name: getattr(held, field.name) for field in fields(held)})
    return held
