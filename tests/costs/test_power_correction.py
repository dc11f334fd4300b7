"""What measured calls say of the power beyond the power model."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import asdict

import numpy as np
import pytest

from dippm.costs.power_correction import PowerCorrection

RNG = np.random.default_rng(0)
FIGURES = RNG.normal(size=(60, 2)) * (3.0, 0.01) + (10.0, 0.05)
# Too much power is predicted of calls whose first figure is large.
ERRORS = 0.1 * np.tanh(FIGURES[:, 0] - 10.0)
CORRECTION = PowerCorrection.fit(("first", "second"), FIGURES, ERRORS)


def test_what_was_met_amiss_is_corrected() -> None:
    left = np.log(CORRECTION.factor(FIGURES)) + ERRORS
    assert np.abs(left).mean() < 0.35 * np.abs(ERRORS).mean()
    above, below = CORRECTION.factor(np.array([[12.5, 0.05], [7.5, 0.05]])).tolist()
    assert above == pytest.approx(np.exp(-0.1), abs=0.02)
    assert below == pytest.approx(np.exp(0.1), abs=0.02)


def test_of_a_call_unlike_all_nothing_is_said() -> None:
    assert CORRECTION.factor(np.array([[100.0, 0.05], [10.0, 1.0]])) == pytest.approx(1.0, abs=1e-9)


def test_calls_are_corrected_one_by_one_as_together() -> None:
    together = CORRECTION.factor(FIGURES.reshape(3, 20, 2))
    assert together.shape == (3, 20)
    assert together.ravel().tolist() == [float(CORRECTION.factor(row)) for row in FIGURES]


def test_no_more_is_held_than_how_alike_calls_are() -> None:
    known, calls = RNG.normal(size=(50, 11)), RNG.normal(size=(2000, 11))
    correction = PowerCorrection.fit(tuple("abcdefghijk"), known, np.zeros(50))
    tracemalloc.start()
    correction.factor(calls)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Not all differences of all figures at once, which take eleven times as much.
    assert most < 5 * 2000 * 50 * 8


def test_a_figure_that_is_always_the_same_tells_nothing() -> None:
    alike = np.column_stack([FIGURES[:, 0], np.ones(60)])
    correction = PowerCorrection.fit(("first", "second"), alike, ERRORS)
    assert np.isfinite(correction.factor(alike)).all()


def test_a_file_holds_all_of_it() -> None:
    held = json.loads(json.dumps(asdict(CORRECTION)))
    assert PowerCorrection.from_json(held) == CORRECTION


@pytest.mark.parametrize("part", ["columns", "mean", "scale", "known", "weight"])
def test_a_damaged_one_is_refused(part: str) -> None:
    held = json.loads(json.dumps(asdict(CORRECTION)))
    held[part] = held[part][:-1]
    with pytest.raises(ValueError, match="different sizes"):
        PowerCorrection.from_json(held)
