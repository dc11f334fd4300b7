"""What each part of the additive predictor is worth: the same fits without it, and a boosted tree instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dippm.errors import MissingExtraError
from dippm.features.physical import COLUMNS
from dippm.training.additive_samples import AdditiveSamples

__all__ = ["ABLATIONS", "predict_by_trees"]

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]

_DEVICE_COLUMNS = ("compute_use", "memory_use", "balance", "over_cache", "waves", "last_wave")
_COST_COLUMNS = ("kernel_ms", "share", "compute_use", "memory_use")
_ROUNDS = 1000
_TREES = {
    "objective": "regression_l1",
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


def _without_messages(samples: AdditiveSamples) -> AdditiveSamples:
    arrays = samples.arrays
    silent = replace(
        arrays,
        producer_weight=np.zeros_like(arrays.producer_weight),
        consumer_weight=np.zeros_like(arrays.consumer_weight),
    )
    return replace(samples, arrays=silent, key=f"{samples.key} without messages")


def _without_device(samples: AdditiveSamples) -> AdditiveSamples:
    return _without_columns(samples, _DEVICE_COLUMNS, key=f"{samples.key} without device")


def _without_kernel_costs(samples: AdditiveSamples) -> AdditiveSamples:
    """Every kernel at its roofline: the larger of arithmetic and traffic at the data sheet's peaks."""
    arrays = samples.arrays
    uses = arrays.node_features[:, [COLUMNS.index("compute_use"), COLUMNS.index("memory_use")]]
    roofline_ms = arrays.kernel_ms * np.exp(uses.max(axis=1))
    plain = replace(samples, arrays=replace(arrays, kernel_ms=roofline_ms.astype(np.float32)))
    return _without_columns(plain, _COST_COLUMNS, key=f"{samples.key} without kernel costs")


#: What is left out, and the samples without it.
ABLATIONS: Mapping[str, Callable[[AdditiveSamples], AdditiveSamples]] = {
    "without messages between operators": _without_messages,
    "without device features": _without_device,
    "without kernel costs (roofline instead)": _without_kernel_costs,
}


def predict_by_trees(samples: AdditiveSamples, training: IndexArray, test: IndexArray, *, seed: int) -> FloatArray:
    """Boosted trees on the summed costs: the plain time of each kind of operator, and how many there are.

    Args:
        samples: All samples.
        training: Those to train on.
        test: Those to predict.
        seed: Seed of the trees.

    Returns:
        Predicted time, ms, [len(test)].

    Raises:
        MissingExtraError: LightGBM is not installed.
    """
    try:
        import lightgbm
    except ImportError as exc:
        raise MissingExtraError(package="lightgbm", extra="train", purpose="train boosted trees") from exc
    sums = _sum_costs(samples)
    # The trees learn the correction of the plain sum: from the time itself they are far worse.
    plain = sums[:, 0]
    features = np.log1p(1e3 * sums)
    booster = lightgbm.train(
        {**_TREES, "seed": seed},
        lightgbm.Dataset(features[training], np.log(samples.measured_ms[training] / plain[training])),
        num_boost_round=_ROUNDS,
    )
    result: FloatArray = plain[test] * np.exp(booster.predict(features[test]))
    return result


def _sum_costs(samples: AdditiveSamples) -> FloatArray:
    """Plain time, launches, and both by kind of operator, [S, *]."""
    arrays = samples.arrays
    kinds = [place for place, name in enumerate(COLUMNS) if name.startswith("is_")]
    time_ms = arrays.kernel_ms.astype(np.float64) * arrays.count
    launches = (arrays.launches * arrays.count).astype(np.float64)
    of_kind = arrays.node_features[:, kinds] > 0
    columns = [time_ms[:, None], launches[:, None], time_ms[:, None] * of_kind, launches[:, None] * of_kind]
    result: FloatArray = np.add.reduceat(np.concatenate(columns, axis=1), arrays.node_offsets[:-1], axis=0)
    return result


def _without_columns(samples: AdditiveSamples, names: tuple[str, ...], *, key: str) -> AdditiveSamples:
    """The same with columns that do not vary, which a network does not see."""
    features = samples.arrays.node_features.copy()
    features[:, [COLUMNS.index(name) for name in names]] = 0.0
    return replace(samples, arrays=replace(samples.arrays, node_features=features), key=key)
