"""What a campaign says of itself, worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dippm.datasets.campaign.report import CampaignReport, CampaignStoppedError, FleetTally, Tally
from dippm.datasets.campaign.stopping import StopReason
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.store.label import Label
from dippm.errors import UnsupportedError
from dippm.frontends.inputs import InputShapes
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome

REPORT = CampaignReport(
    device="H200",
    stopped=StopReason.BUDGET,
    planned=1000,
    found=100,
    measured=60,
    repeats=2,
    not_tried=7,
    remaining=833,
    wall_s=200.0,
    measuring_s=100.0,
    busy_s=80.0,
    budget_s=150.0,
    by_outcome={"ok": 50, "failed": 6, "timed-out": 3, "out-of-memory": 1},
    by_family={"vgg": 20, "resnet": 40},
    failures=(("failed", "no kernel", 6), ("timed-out", "", 3)),
    noise=(),
    graphs=12,
    graphs_failed={"0123": "cannot be read"},
    graphs_pending=3,
)


def test_figures_by_hand() -> None:
    # What ran out of memory is a result: it says that the model does not fit.
    assert REPORT.rows_per_minute == pytest.approx(60 * 51 / 100)
    assert REPORT.busy_share == 0.8
    assert REPORT.budget_left_s == 0.0
    assert replace(REPORT, wall_s=120.0).budget_left_s == 30.0
    assert replace(REPORT, budget_s=None).budget_left_s is None
    nothing = replace(REPORT, measuring_s=0.0, measured=0, by_outcome={})
    assert (nothing.rows_per_minute, nothing.busy_share) == (0.0, 0.0)


def test_several_devices_are_busy_together() -> None:
    fleet = replace(REPORT, fleet=FleetTally(devices=4, device_s=400.0, lost=1))
    assert fleet.busy_share == 0.2
    assert "4 devices at most, 1 processes lost" in str(fleet)
    assert fleet.to_dict()["fleet"]["device_s"] == 400.0  # type: ignore[index]


def test_it_is_said_in_words_and_as_json() -> None:
    text = str(REPORT)
    for part in (
        "H200: budget spent after 200 s, 0 s of the budget left",
        "60 measured (2 again), 100 there before, 7 not tried, 833 of 1000 to go",
        "nothing was measured twice yet",
        "12 read, 1 failed, 3 to go",
        "resnet 40, vgg 20",
        "6 x  failed: no kernel\n",
        "3 x  timed-out",
    ):
        assert part in text
    values = json.loads(json.dumps(REPORT.to_dict()))
    assert values["failures"][0] == {"outcome": "failed", "reason": "no kernel", "rows": 6}
    assert (values["stopped"], values["budget_left_s"], values["fleet"]) == ("budget spent", 0.0, None)


def test_many_reasons_are_cut() -> None:
    failures = tuple(("failed", f"reason {number}", 1) for number in range(20))
    text = str(replace(REPORT, failures=failures))
    assert "reason 14" in text
    assert "reason 15" not in text
    assert "and 5 more reasons" in text


def test_rows_are_counted_one_by_one() -> None:
    tally = Tally()
    for number, outcome in enumerate((Outcome.OK, Outcome.OK, Outcome.FAILED)):
        tally.add(
            Label(
                recipe=Recipe(
                    collection="test",
                    family="vgg" if number else "resnet",
                    architecture="x",
                    inputs=InputShapes(),
                    batch=1,
                ),
                configuration=Configuration(batch=1),
                measurement=Measurement(outcome=outcome, message="x" * 500, device="H200", measured_at=""),
                repeat=number % 2,
            )
        )
    assert (tally.rows, tally.repeats) == (3, 1)
    assert tally.by_outcome == {"ok": 2, "failed": 1}
    assert tally.by_family == {"resnet": 1, "vgg": 2}
    assert tally.failures == {("failed", "x" * 200): 1}


def test_an_error_that_ends_it_keeps_its_code_and_the_report() -> None:
    cause = UnsupportedError("The device is gone.", code="device.unavailable")
    error = CampaignStoppedError(cause, report=REPORT)
    assert (error.code, error.exit_status, error.report) == (cause.code, cause.exit_status, REPORT)
    assert "The device is gone." in str(error)
