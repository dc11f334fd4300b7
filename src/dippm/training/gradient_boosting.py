"""The honest simple baseline: gradient-boosted trees on summed costs, one ensemble for each metric."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dippm.datasets.graph_samples import Part, SampleTable
from dippm.datasets.selection import METRICS
from dippm.errors import MissingExtraError
from dippm.training.run_folder import writing_to

__all__ = ["FittedTrees", "fit_trees"]

_ROUNDS = 2000
_ROUNDS_WITHOUT_GAIN = 100
_PARAMETERS = {
    "objective": "regression",
    "learning_rate": 0.03,
    "num_leaves": 31,
    "min_data_in_leaf": 10,
    "feature_fraction": 0.8,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "num_threads": 1,
    "verbosity": -1,
    "deterministic": True,
    "force_row_wise": True,
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FittedTrees:
    """Trained trees.

    Args:
        trees: LightGBM's text of each metric's ensemble.
        predictions: Predicted figures of every sample; NaN for a metric without labels.
        duration_s: Wall time of the training, s.

    Shapes:
        predictions: [S, 3].
    """

    trees: Mapping[str, str]
    predictions: npt.NDArray[np.float64]
    duration_s: float

    def save(self, folder: Path) -> None:
        """Write one text file for each metric.

        Raises:
            UsageError: ``train.unwritable``.
        """
        with writing_to(folder):
            for metric, text in self.trees.items():
                (folder / f"{metric}.txt").write_text(text, encoding="utf-8")


def fit_trees(samples: SampleTable, parts: npt.NDArray[np.int8], *, seed: int = 0) -> FittedTrees:
    """Train on the logarithms of the figures; the validation split says how many trees there are.

    Raises:
        MissingExtraError: LightGBM is not installed.
    """
    if find_spec("lightgbm") is None:
        raise MissingExtraError(package="lightgbm", extra="train", purpose="train boosted trees")
    import lightgbm

    began = time.monotonic()
    features = np.log1p(samples.cost_sums)
    predictions = np.full_like(samples.targets, np.nan)
    trees = {}
    for column, metric in enumerate(METRICS):
        log_target = np.log(samples.targets[:, column])
        training, validation = ((parts == part) & np.isfinite(log_target) for part in (Part.TRAINING, Part.VALIDATION))
        if not training.any() or not validation.any():
            continue
        learned = lightgbm.Dataset(features[training], log_target[training])
        booster = lightgbm.train(
            {**_PARAMETERS, "seed": seed},
            learned,
            num_boost_round=_ROUNDS,
            valid_sets=[lightgbm.Dataset(features[validation], log_target[validation], reference=learned)],
            callbacks=[lightgbm.early_stopping(_ROUNDS_WITHOUT_GAIN, verbose=False)],
        )
        predictions[:, column] = np.exp(booster.predict(features))
        trees[metric] = booster.model_to_string()
    return FittedTrees(trees=trees, predictions=predictions, duration_s=time.monotonic() - began)
