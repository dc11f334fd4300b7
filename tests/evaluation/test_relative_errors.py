"""Errors in percent."""

from __future__ import annotations

import numpy as np
import pytest

from dippm.evaluation.relative_errors import absolute_errors, mape_percent

_NAN = float("nan")


def test_by_hand() -> None:
    measured = np.array([[100.0, 2.0, _NAN], [200.0, 4.0, _NAN]])
    predicted = np.array([[110.0, 1.0, 5.0], [200.0, 5.0, 5.0]])
    np.testing.assert_allclose(absolute_errors(predicted, measured)[:, :2], [[10.0, 50.0], [0.0, 25.0]])
    assert mape_percent(predicted, measured) == {
        "memory_mb": pytest.approx(5.0),
        "latency_ms": pytest.approx(37.5),
        "mean": pytest.approx(21.25),
    }


def test_nothing_measured() -> None:
    assert mape_percent(np.ones((2, 3)), np.full((2, 3), _NAN)) == {}
    assert mape_percent(np.ones((0, 3)), np.ones((0, 3))) == {}
