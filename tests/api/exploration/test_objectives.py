"""Objectives and limits."""

from __future__ import annotations

import pytest

from dippm.api.exploration.objectives import Limit, Objective, parse_limits, parse_objectives, round_metric
from dippm.errors import UsageError


def test_short_names_and_directions() -> None:
    found = parse_objectives("latency, memory,params:max", is_training=False, has_score=False)
    assert found == (
        Objective(metric="latency_ms"),
        Objective(metric="memory_mb"),
        Objective(metric="params", is_maximised=True),
    )
    assert [str(each) for each in found] == ["latency_ms:min", "memory_mb:min", "params:max"]
    assert parse_objectives(["step_time"], is_training=True, has_score=False) == (Objective(metric="step_time_ms"),)


@pytest.mark.parametrize("text", ["", "speed", "latency:most", "latency,latency_ms", "step_time", "score"])
def test_wrong_objectives(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_objectives(text, is_training=False, has_score=False)
    assert caught.value.code == "explore.objective"


def test_a_limit_is_judged_at_the_bad_end() -> None:
    most, least = parse_limits(["latency=5", "params>=1e6"], is_training=False, has_score=False)
    assert (most, least) == (
        Limit(metric="latency_ms", bound=5.0),
        Limit(metric="params", bound=1e6, is_least=True),
    )
    assert most.excess((3.0, 6.0)) == pytest.approx(0.2)
    assert most.excess((3.0, 5.0)) == 0
    assert least.excess((0.5e6, 2e6)) == pytest.approx(0.5)
    assert parse_limits({"memory": 4864}, is_training=False, has_score=False) == (
        Limit(metric="memory_mb", bound=4864.0),
    )
    assert str(least) == "params>=1e+06"


@pytest.mark.parametrize("text", ["latency", "latency=", "latency=fast", "latency=nan", "latency<5", "=5"])
def test_wrong_limits(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_limits([text], is_training=False, has_score=False)
    assert caught.value.code == "explore.limit"


@pytest.mark.parametrize(
    ("metric", "value", "told"),
    [
        ("latency_ms", 8.129714222318423, 8.13),
        ("memory_mb", 12345.678, 12350.0),
        ("score", 8.129714222318423, 8.12971),
        ("params", 123456789, 123456789),
    ],
)
def test_values_are_told_with_the_digits_that_mean_something(metric: str, value: float, told: float) -> None:
    assert round_metric(metric, value) == told
    assert type(round_metric(metric, value)) is type(told)
