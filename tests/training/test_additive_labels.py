from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from dippm.errors import UsageError
from dippm.training.additive_labels import device_parts, family_folds, random_parts
from dippm.training.additive_samples import AdditiveSamples

_DEVICE = "GeForce RTX 3090"


def test_parts_share_no_model(step_samples: AdditiveSamples) -> None:
    parts = random_parts(step_samples, seed=3)
    assert sorted(np.concatenate(parts).tolist()) == step_samples.usable.tolist()
    models = [{step_samples.labels[position].recipe.model_key for position in part} for part in parts]
    assert not models[0] & models[1] | models[0] & models[2] | models[1] & models[2]


def test_every_family_is_left_out_once(step_samples: AdditiveSamples) -> None:
    folds = family_folds(step_samples, folds=2)
    tested = np.concatenate([test for _, test in folds])
    assert sorted(tested.tolist()) == step_samples.usable.tolist()
    for training, test in folds:
        families = [{step_samples.labels[position].recipe.family for position in part} for part in (training, test)]
        assert not families[0] & families[1]


def test_families_under_two_names_are_left_out_together(step_samples: AdditiveSamples) -> None:
    names = {step_samples.labels[position].recipe.family for position in step_samples.usable}
    renamed = dict(zip(names, ("vit", "vision_transformer"), strict=True))
    labels = tuple(
        replace(label, recipe=replace(label.recipe, family=renamed[label.recipe.family]))
        for label in step_samples.labels
    )
    assert len(family_folds(step_samples, folds=len(renamed))) == 2
    with pytest.raises(UsageError) as caught:
        family_folds(replace(step_samples, labels=labels), folds=2)
    assert caught.value.code == "split.empty"


def test_more_folds_than_families_are_an_error(step_samples: AdditiveSamples) -> None:
    with pytest.raises(UsageError) as caught:
        family_folds(step_samples, folds=99)
    assert caught.value.code == "split.empty"


def test_a_device_left_out_teaches_nothing_and_shares_no_model(
    step_samples: AdditiveSamples, two_devices: AdditiveSamples
) -> None:
    samples = two_devices
    training, pool, test = device_parts(samples, device=_DEVICE, seed=0)

    def described(part: npt.NDArray[np.int64]) -> tuple[set[str], set[str]]:
        labels = [samples.labels[position] for position in part.tolist()]
        return {label.measurement.device for label in labels}, {label.graph_hash for label in labels}

    assert described(training)[0] == {"GeForce RTX 4090"}
    assert described(pool)[0] == described(test)[0] == {_DEVICE}
    assert not described(test)[1] & (described(training)[1] | described(pool)[1])
