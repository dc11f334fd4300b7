"""The search against looking at every batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dippm.api.batch_search import LARGEST_BATCH, BatchSearch, _batches_beyond
from dippm.errors import UnsupportedError


class _Model:
    """Predicts memory in MiB by a rule, with an interval of ten per cent, and a time: 1 ms a sample, or by a rule."""

    def __init__(
        self,
        memory_mb: Callable[[int], float],
        *,
        live_mb: Callable[[int], float] | None = None,
        needed_mb: Callable[[int], float] | None = None,
        time_ms: Callable[[int], float] = float,
    ) -> None:
        self._memory_mb, self._live_mb, self._time_ms = memory_mb, live_mb or memory_mb, time_ms
        self._needed_mb = needed_mb or memory_mb
        self.asked: list[int] = []

    def __call__(self, batches: Sequence[int]) -> list[Any]:
        self.asked += batches
        return [self._predict(batch) for batch in batches]

    def _predict(self, batch: int) -> Any:
        held_mb = self._memory_mb(batch)
        return SimpleNamespace(
            memory_mb=held_mb,
            memory_parts_mb={"slack": held_mb - self._live_mb(batch)},
            latency_ms=self._time_ms(batch),
            intervals={"memory_mb": (0.9 * held_mb, 1.1 * held_mb)},
            must_have_mb=(0.9 * self._needed_mb(batch), 1.1 * self._needed_mb(batch)),
        )


def _search(model: Any, capacity_mb: float, bound_ms: float | None = None) -> BatchSearch:
    return BatchSearch(model, capacity_mb=capacity_mb, time_bound_ms=bound_ms)


def test_what_is_needed_decides_and_not_what_is_held() -> None:
    model = _Model(
        lambda batch: 100.0 * batch, live_mb=lambda batch: 50.0 * batch, needed_mb=lambda batch: 50.0 * batch
    )
    search = _search(model, 11_000.0)
    assert search.largest_certain() == 200
    assert search.largest_possible() == 244


def test_live_tensors_rule_nothing_out_where_less_than_these_is_needed() -> None:
    """Kernels that make no copies need less than what is alive with those that do."""

    def needed_mb(batch: int) -> float:
        return (48.0 if batch < 186 else 60.0 if batch <= 212 else 45.0) * batch

    assert _search(_Model(lambda batch: 100.0 * batch, needed_mb=needed_mb), 11_000.0).largest_certain() == 222


@given(fixed=st.floats(1.0, 5000.0), growth=st.floats(1e-3, 500.0), capacity=st.floats(1000.0, 80_000.0))
def test_even_growth_is_found_exactly(fixed: float, growth: float, capacity: float) -> None:
    model = _Model(lambda batch: fixed + growth * batch)
    search = _search(model, capacity)
    for found, share in ((search.largest_certain(), 1.1), (search.largest_possible(), 0.9)):
        if found < LARGEST_BATCH:
            assert share * (fixed + growth * (found + 1)) > capacity
        assert found == 0 or share * (fixed + growth * found) <= capacity


def test_few_batches_are_looked_at() -> None:
    model = _Model(lambda batch: 700.0 + 41.7 * batch)
    search = _search(model, 24_000.0)
    assert search.largest_certain() == int((24_000 / 1.1 - 700) / 41.7)
    assert len(model.asked) == len(set(model.asked)) <= 12


def test_slack_that_comes_and_goes_hides_no_larger_batch_nearby() -> None:
    def memory_mb(batch: int) -> float:
        return 500.0 + 100.0 * batch + (900.0 if batch % 8 in (3, 4, 5) else 0.0)

    search = _search(_Model(memory_mb, live_mb=lambda batch: 500.0 + 100.0 * batch), 10_000.0)
    expected = max(batch for batch in range(1, 200) if 1.1 * memory_mb(batch) <= 10_000.0)
    assert search.largest_certain() == expected


def test_the_look_beyond_ends_where_live_tensors_alone_are_too_many() -> None:
    model = _Model(lambda batch: 500.0 + 10.0 * batch)
    assert _search(model, 100_000.0).largest_certain() > 9000
    assert len(model.asked) < 20


def test_a_bound_on_time_is_kept() -> None:
    search = _search(_Model(lambda batch: 500.0 + batch), 80_000.0, bound_ms=37.5)
    assert (search.largest_certain(), search.largest_possible()) == (37, 37)
    assert search.is_bound_by_time(37)
    assert not _search(_Model(lambda batch: 500.0 + batch), 537.5, bound_ms=100.0).is_bound_by_time(37)


def test_a_time_that_comes_and_goes_is_not_followed_for_ever() -> None:
    """Every fifth batch is quicker than its neighbours, so that up to a million one is never far."""

    def time_ms(batch: int) -> float:
        return 0.5 + 5e-7 * batch + (0.2 if batch % 5 else 0.0)

    model = _Model(lambda batch: 500.0 + 1e-6 * batch, time_ms=time_ms)
    search = _search(model, 80_000.0, bound_ms=1.0)
    found = search.largest_certain()
    assert time_ms(found) <= 1.0
    assert found > 600_000
    assert search.largest_possible() >= found
    assert search.is_bound_by_time(found)
    assert len(model.asked) < 700


def test_nothing_fits() -> None:
    search = _search(_Model(lambda batch: 500.0 + batch), 100.0)
    assert (search.largest_certain(), search.largest_possible()) == (0, 0)


def test_memory_that_never_grows_has_no_bound() -> None:
    assert _search(_Model(lambda _: 500.0), 1000.0).largest_certain() == LARGEST_BATCH


def test_batches_beyond_every_device_do_not_fit() -> None:
    def predict(batches: Sequence[int]) -> list[Any]:
        if max(batches) > 1000:
            raise UnsupportedError("too large", code="graph.too_large")
        return _Model(lambda batch: math.pi * batch)(batches)

    assert _search(predict, 1e9).largest_certain() == 1000


def test_other_errors_pass() -> None:
    def predict(_: Sequence[int]) -> list[Any]:
        raise UnsupportedError("no", code="graph.fixed_batch")

    with pytest.raises(UnsupportedError):
        _search(predict, 1e9).largest_certain()


@pytest.mark.parametrize("batch", [1, 3, 40, 5000, 200_000, LARGEST_BATCH - 2, LARGEST_BATCH - 2000])
def test_batches_beyond(batch: int) -> None:
    found = _batches_beyond(batch)
    end = min(batch + max(batch // 4, 4), LARGEST_BATCH)
    assert found[:8] == list(range(batch + 1, min(batch + 8, end) + 1))
    assert found == sorted(set(found))
    assert len(found) <= 3 * 8
    assert end - found[-1] <= max((end - batch) // 8, 1)
