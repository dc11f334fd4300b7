"""Boosted trees on summed costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dippm.datasets.graph_samples import Part
from dippm.errors import UsageError

pytest.importorskip("lightgbm")

from dippm.training.gradient_boosting import FittedTrees, fit_trees


def test_learn_and_repeat(samples, parts) -> None:
    first, second = fit_trees(samples, parts), fit_trees(samples, parts)
    assert np.array_equal(first.predictions, second.predictions)
    assert first.predictions.shape == samples.targets.shape
    chosen = parts == Part.TRAINING
    constant = np.exp(np.nanmean(np.log(samples.targets[chosen]), axis=0))
    errors = [np.nanmean(np.abs(p / samples.targets[chosen] - 1)) for p in (first.predictions[chosen], constant)]
    assert errors[0] < 0.7 * errors[1]


def test_a_folder_that_is_none_is_a_clear_error(tmp_path) -> None:
    (tmp_path / "file").touch()
    trees = FittedTrees(trees={"latency_ms": "tree"}, predictions=np.zeros((1, 3)), duration_s=0.0)
    with pytest.raises(UsageError, match="cannot be written to") as caught:
        trees.save(tmp_path / "file")
    assert (caught.value.code, caught.value.cure) == ("train.unwritable", "Name another folder.")


def test_trees_know_nothing_of_the_test_split(samples, parts) -> None:
    changed = replace(samples, targets=np.where((parts == Part.TEST)[:, None], 1e6, samples.targets))
    assert np.array_equal(fit_trees(samples, parts).predictions, fit_trees(changed, parts).predictions)


def test_a_metric_without_labels_is_left_out(samples, parts, tmp_path) -> None:
    targets = samples.targets.copy()
    targets[:, 2] = np.nan
    fitted = fit_trees(replace(samples, targets=targets), parts)
    assert np.isnan(fitted.predictions[:, 2]).all()
    fitted.save(tmp_path / "trees")
    assert sorted(path.name for path in (tmp_path / "trees").iterdir()) == ["latency_ms.txt", "memory_mb.txt"]
