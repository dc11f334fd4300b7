"""The books of a campaign."""

from __future__ import annotations

from typing import Any

import pytest

from dippm.datasets.campaign.ledger import REPEAT_DISTANCE, FailureStreak, Ledger
from dippm.datasets.campaign.plan import Plan, Task, make_plan
from dippm.datasets.campaign.report import CampaignStoppedError
from dippm.datasets.campaign.stopping import StopReason, StopRequested
from dippm.errors import DippmError
from dippm.measuring.measurement import Measurement, Outcome

DEVICE = "Test Device"


def open_ledger(plan: Plan, store: Any, **options: Any) -> Ledger:
    settings: dict[str, Any] = {
        "known": list(store.rows.values()),
        "graphs": None,
        "graphs_beside": True,
        "budget_s": None,
        "began_s": None,
        "on_progress": None,
    }
    return Ledger(plan, store=store, **{**settings, **options})


def measured(outcome: Outcome = Outcome.OK) -> Measurement:
    # A process that died cannot name its device.
    return Measurement(outcome=outcome, device="", measured_at="")


@pytest.fixture(name="plan")
def _plan(recipes: Any, inference: Any) -> Plan:
    return make_plan(recipes(60), [inference()], device=DEVICE)


def test_a_row_is_open_until_it_is_kept(plan: Plan, store: Any) -> None:
    ledger = open_ledger(plan, store)
    task = plan.models[0].tasks[0]
    assert ledger.is_open(task)
    assert not ledger.is_settled(task.key)
    ledger.keep(task, measured(), repeat=0)
    assert not ledger.is_open(task)
    assert ledger.is_settled(task.key)
    assert store.rows[task.key].measurement.device == DEVICE
    assert not open_ledger(plan, store).is_open(task)


def test_larger_batches_of_a_full_series_are_never_open(plan: Plan, store: Any) -> None:
    ledger = open_ledger(plan, store)
    smallest, middle, largest = plan.models[0].tasks
    ledger.keep(middle, measured(Outcome.OUT_OF_MEMORY), repeat=0)
    assert [ledger.is_open(task) for task in (smallest, middle, largest)] == [True, False, False]
    assert ledger.run(lambda: True, busy_s=lambda: 0.0).not_tried == 1


def find_repeated(plan: Plan) -> Task:
    return next(task for task in plan.tasks() if task.repeat_key is not None)


def test_a_second_measurement_is_due_when_its_first_is_far_enough(plan: Plan, store: Any) -> None:
    ledger = open_ledger(plan, store)
    repeated = find_repeated(plan)
    ledger.keep(repeated, measured(), repeat=0)
    (repeat,) = ledger.repeats
    assert repeat.task is repeated
    assert not ledger.is_due(repeat)
    assert not ledger.is_due(repeat, distance=2)
    others = [task for task in plan.tasks() if task.repeat_key is None]
    ledger.keep(others[0], measured(), repeat=0)
    assert ledger.is_due(repeat, distance=2)
    assert ledger.is_due_at_last(repeat)
    # One whose first was made by an earlier run is due at once.
    later = open_ledger(plan, store)
    later.queue_old_repeats(next(model for model in plan.models if repeated in model.tasks))
    assert later.is_due(later.repeats[0], distance=REPEAT_DISTANCE)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.OUT_OF_MEMORY, Outcome.TIMED_OUT])
def test_what_has_no_figures_is_not_measured_twice(outcome: Outcome, plan: Plan, store: Any) -> None:
    ledger = open_ledger(plan, store)
    ledger.keep(find_repeated(plan), measured(outcome), repeat=0)
    assert not ledger.repeats


def test_it_learns_what_a_row_takes(plan: Plan, store: Any) -> None:
    ledger = open_ledger(plan, store, budget_s=1000.0)
    assert ledger.has_time_for(400)
    for _ in range(100):
        ledger.count_time(50.0)
    assert 49 < ledger.row_s < 50
    assert ledger.has_time_for(15)
    assert not ledger.has_time_for(25)


@pytest.mark.parametrize(("is_complete", "stopped"), [(True, StopReason.FINISHED), (False, StopReason.BUDGET)])
def test_the_report_says_why_it_ended(is_complete: bool, stopped: StopReason, plan: Plan, store: Any) -> None:
    report = open_ledger(plan, store).run(lambda: is_complete, busy_s=lambda: 3.0)
    assert (report.stopped, report.busy_s, report.fleet) == (stopped, 3.0, None)
    assert report.remaining == report.planned


def test_a_stop_and_an_error_end_with_the_report(plan: Plan, store: Any) -> None:
    def stop() -> bool:
        raise StopRequested

    def fail() -> bool:
        raise DippmError("It broke.", code="some.code")

    assert open_ledger(plan, store).run(stop, busy_s=lambda: 0.0).stopped is StopReason.INTERRUPTED
    with pytest.raises(CampaignStoppedError) as caught:
        open_ledger(plan, store).run(fail, busy_s=lambda: 0.0)
    assert (caught.value.code, caught.value.report.stopped) == ("some.code", StopReason.FAILED)


def test_a_streak_is_a_fault_after_ten_rows_of_three_models(plan: Plan) -> None:
    streak = FailureStreak()
    tasks = list(plan.tasks())
    for task in tasks[:9]:
        streak.add(task, measured(Outcome.FAILED))
    assert not streak.is_fault
    streak.add(tasks[9], measured(Outcome.OUT_OF_MEMORY))
    assert not streak.is_fault
    streak.add(tasks[10], measured(Outcome.FAILED))
    assert streak.is_fault
    assert streak.make_error("the last reason").code == "campaign.failing"
    streak.add(tasks[11], measured())
    assert not streak.is_fault
    for _ in range(20):
        streak.add(tasks[0], measured(Outcome.FAILED))
    assert not streak.is_fault
