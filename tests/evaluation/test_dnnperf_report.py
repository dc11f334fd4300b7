from __future__ import annotations

import json

import pytest

from dippm.evaluation.dnnperf_report import DnnperfReport
from dippm.models.dnnperf_registry import ANEE


def test_it_is_plain_data(dnnperf_report: DnnperfReport) -> None:
    values = json.loads(json.dumps(dnnperf_report.to_dict(), allow_nan=False))
    assert values["settings"] == {"epochs": 30, "seed": 0, "seeds": 2, "family_groups": 3}
    assert len(values["rows"]) == len(dnnperf_report.rows)


def test_the_mean_is_over_the_seeds(dnnperf_report: DnnperfReport) -> None:
    errors = [
        score.test["overall"]["latency_ms"].mre_percent for score in dnnperf_report.comparison if score.model == ANEE
    ]
    assert len(errors) == 2
    assert dnnperf_report.mean_error(ANEE, "latency_ms") == pytest.approx(sum(errors) / 2)


def test_a_mean_of_nothing_is_none(dnnperf_report: DnnperfReport) -> None:
    assert dnnperf_report.mean_error("no such network", "latency_ms") is None
    assert dnnperf_report.mean_error(ANEE, "no such metric") is None
