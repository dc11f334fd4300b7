"""The report of an adaptation as plain values."""

from __future__ import annotations

import json
from dataclasses import replace

from dippm.training.adaptation_report import AdaptationReport, AdaptedRegime
from dippm.training.device_calibration import CalibratedPower, MeasuredContext

REGIME = AdaptedRegime(
    regime="inference",
    rows=24,
    models=12,
    host_rows=6,
    before={"rows": 24, "mape_percent": 28.5},
    after={"rows": 24, "mape_percent": 4.5},
    is_tuned=True,
    coverage_before_percent=12.5,
    half_width_factor=1.5,
    median_half_width_percent=9.0,
)
REPORT = AdaptationReport(
    device="Card of one's own",
    folder="adapted",
    regimes=(REGIME, replace(REGIME, regime="training", is_tuned=False)),
    host_ratio=2.0,
    power=(CalibratedPower(mode="inference", rows=24, ratio=0.75, spread=0.125),),
    context=MeasuredContext(rows=9, context_mb=500.0, estimated_mb=450.0, margin_low_mb=20.0, margin_high_mb=30.0),
    left_out={"no latency": 3},
    unread={"0a1b": "There is no such architecture."},
    duration_s=12.5,
)
REGIME_VALUES = {
    "regime": "inference",
    "rows": 24,
    "models": 12,
    "host_rows": 6,
    "before": {"rows": 24, "mape_percent": 28.5},
    "after": {"rows": 24, "mape_percent": 4.5},
    "is_tuned": True,
    "coverage_before_percent": 12.5,
    "half_width_factor": 1.5,
    "median_half_width_percent": 9.0,
}


def test_all_of_it_is_plain_values_with_their_units() -> None:
    assert json.loads(json.dumps(REPORT.to_dict(), allow_nan=False)) == {
        "device": "Card of one's own",
        "folder": "adapted",
        "regimes": [REGIME_VALUES, {**REGIME_VALUES, "regime": "training", "is_tuned": False}],
        "host_ratio": 2.0,
        "power": [{"mode": "inference", "rows": 24, "ratio": 0.75, "spread": 0.125}],
        "context": {
            "rows": 9, "context_mb": 500.0, "estimated_mb": 450.0, "margin_low_mb": 20.0, "margin_high_mb": 30.0,
        },
        "left_out": {"no latency": 3},
        "unread": {"0a1b": "There is no such architecture."},
        "duration_s": 12.5,
    }  # fmt: skip


def test_what_no_label_says_is_null_or_empty() -> None:
    values = json.loads(json.dumps(replace(REPORT, context=None, power=(), left_out={}, unread={}).to_dict()))
    assert values["context"] is None
    assert (values["power"], values["left_out"], values["unread"]) == ([], {}, {})


def test_what_is_done_to_the_values_leaves_the_report_as_it_was() -> None:
    values = REPORT.to_dict()
    values["left_out"]["no latency"] = 0
    values["regimes"][0]["before"]["rows"] = 0
    assert REPORT.left_out == {"no latency": 3}
    assert REGIME.before["rows"] == 24
