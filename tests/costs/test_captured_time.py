"""Traced kernels as a captured graph runs them."""

from __future__ import annotations

import numpy as np
import pytest

from dippm.costs.captured_time import UNTRACED, captured_us, waited_us


def test_what_is_waited_for_is_hidden_behind_long_kernels() -> None:
    traced_us = np.array([[0.0, 2.0], [8.0, 100.0]])
    waits_us = captured_us(traced_us) - UNTRACED * traced_us
    assert waits_us == pytest.approx(np.array([[0.7, 0.52], [0.0, 0.0]]))


def test_waits_are_told_from_what_kernels_take_with_them() -> None:
    traced_us = np.linspace(0.0, 20.0, 50)
    assert waited_us(captured_us(traced_us)) == pytest.approx(captured_us(traced_us) - UNTRACED * traced_us)
    assert waited_us(np.array([0.0, 0.5])).tolist() == [0.7, 0.7]


def test_longer_kernels_take_longer() -> None:
    assert (np.diff(captured_us(np.linspace(0.0, 20.0, 200))) > 0.0).all()
