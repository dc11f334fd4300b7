"""Errors of predicted figures, in percent of the measured ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dippm.datasets.selection import METRICS

__all__ = ["MEAN", "absolute_errors", "mape_percent"]

FloatArray = npt.NDArray[np.float64]

MEAN = "mean"
"""Name of the mean over the metrics."""


def absolute_errors(predicted: FloatArray, measured: FloatArray) -> FloatArray:
    """Absolute error of each figure, %; NaN where nothing was measured.

    Shapes:
        All: [S, 3].
    """
    return 100.0 * np.abs(predicted / measured - 1.0)


def mape_percent(predicted: FloatArray, measured: FloatArray) -> dict[str, float]:
    """Mean absolute percentage error of each metric that was measured, and their mean under :data:`MEAN`.

    Shapes:
        predicted, measured: [S, 3].
    """
    errors = absolute_errors(predicted, measured)
    found = {
        metric: float(column[np.isfinite(column)].mean())
        for metric, column in zip(METRICS, errors.T, strict=True)
        if np.isfinite(column).any()
    }
    return {**found, MEAN: float(np.mean(list(found.values())))} if found else {}
