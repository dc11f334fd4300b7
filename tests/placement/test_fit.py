"""fits: verdicts at and around the limits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.errors import UsageError
from dippm.placement import Fit, FitVerdict, fits

SIZES = st.floats(min_value=0, max_value=1e6, allow_nan=False)


@pytest.mark.parametrize(
    ("interval", "capacity", "verdict", "margin"),
    [
        ((1000, 2000), 4864, "yes", 2864),
        ((1000, 4864), 4864, "yes", 0),
        ((1000, 4865), 4864, "unsure", -1),
        ((4864, 6000), 4864, "unsure", -1136),
        ((4865, 6000), 4864, "no", -1136),
        ((0, 0), 1, "yes", 1),
    ],
)
def test_verdict(interval: tuple[float, float], capacity: float, verdict: str, margin: float) -> None:
    fit = fits(interval, capacity)

    assert (fit.verdict, fit.margin_mb, fit.needed_mb, fit.capacity_mb) == (verdict, margin, interval, capacity)


@pytest.mark.parametrize(
    ("interval", "capacity", "code"),
    [
        ((2, 1), 10, "placement.interval"),
        ((-1, 1), 10, "placement.interval"),
        ((1, math.inf), 10, "placement.interval"),
        ((math.nan, 1), 10, "placement.interval"),
        ((1, 2, 3), 10, "placement.interval"),
        ((1, 2), 0, "placement.capacity"),
        ((1, 2), -5, "placement.capacity"),
        ((1, 2), math.nan, "placement.capacity"),
    ],
)
def test_bad_figures_are_refused(interval: tuple[float, float], capacity: float, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        fits(interval, capacity)

    assert caught.value.code == code


def test_verdict_must_follow_from_the_figures() -> None:
    with pytest.raises(UsageError, match="must follow") as caught:
        Fit(verdict=FitVerdict.YES, margin_mb=0, needed_mb=(1, 20), capacity_mb=10)

    assert caught.value.code == "placement.verdict"


@given(st.tuples(SIZES, SIZES).map(lambda pair: (min(pair), max(pair))), st.floats(min_value=1, max_value=1e6), SIZES)
def test_more_capacity_never_fits_worse(interval: tuple[float, float], capacity: float, more: float) -> None:
    order = [FitVerdict.NO, FitVerdict.UNSURE, FitVerdict.YES]

    small, large = fits(interval, capacity), fits(interval, capacity + more)

    assert order.index(large.verdict) >= order.index(small.verdict)
    assert large.margin_mb >= small.margin_mb
