"""Scaling of DNNPerf's features and targets."""

from __future__ import annotations

import numpy as np
import pytest

from dippm.features.dnnperf_scaling import ColumnScaling, DnnperfScaling, Scaler

_VALUES = np.array([[1.0, 5.0, 2.0], [3.0, 5.0, 4.0], [2.0, 5.0, 9.0]], dtype=np.float32)


def test_min_max_brings_the_training_split_between_minus_1_and_1():
    scaled = ColumnScaling.fit(_VALUES, Scaler.MIN_MAX)(_VALUES)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled[:, [0, 2]], [[-1, -1], [1, -3 / 7], [0, 1]], rtol=1e-6)
    # A column that does not vary is 0, and not a division by 0.
    assert not scaled[:, 1].any()


def test_standard_scaling_has_mean_0_and_deviation_1():
    scaled = ColumnScaling.fit(_VALUES, Scaler.STANDARD)(_VALUES)
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(scaled[:, [0, 2]].std(axis=0), 1, rtol=1e-6)
    assert not scaled[:, 1].any()


def test_values_beyond_the_training_split_are_not_cut():
    scaling = ColumnScaling.fit(_VALUES, Scaler.MIN_MAX)
    np.testing.assert_allclose(scaling(np.array([[5.0, 6.0, -5.0]]))[0], [3.0, 1.0, -3.0])


def test_no_rows_teach_nothing():
    scaling = ColumnScaling.fit(np.zeros((0, 3)), Scaler.MIN_MAX)
    np.testing.assert_array_equal(scaling(_VALUES), _VALUES)


def test_targets_come_back_and_gaps_stay():
    targets = np.array([[100.0, 1.0, np.nan], [400.0, np.nan, np.nan], [200.0, 9.0, np.nan]])
    scaling = DnnperfScaling.fit(nodes=_VALUES, edges=_VALUES, sums=_VALUES, targets=targets, scaler=Scaler.MIN_MAX)
    scaled = scaling.scale_targets(targets)
    np.testing.assert_array_equal(np.isnan(scaled), np.isnan(targets))
    np.testing.assert_allclose(np.nanmean(scaled[:, :2], axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(np.nanstd(scaled[:, :2], axis=0), 1, rtol=1e-6)
    np.testing.assert_allclose(scaling.unscale_targets(scaled), targets, rtol=1e-5)
    assert scaling.target_mean[2] == 0
    assert scaling.target_std[2] == pytest.approx(1)
