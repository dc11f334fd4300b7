from __future__ import annotations

import math
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any

import pytest

from dippm.datasets.campaign import run as campaign_run
from dippm.datasets.campaign.graph_hashes import GraphHash
from dippm.datasets.campaign.plan import Plan, make_plan
from dippm.datasets.campaign.report import CampaignReport, CampaignStoppedError
from dippm.datasets.campaign.run import Campaign
from dippm.datasets.campaign.stopping import StopReason
from dippm.errors import DippmError, UnsupportedError
from dippm.measuring.measurement import Outcome

DEVICE = "Test Device"


def run(plan: Plan, device: Any, store: Any, **options: Any) -> CampaignReport:
    return Campaign(plan, measurer=device, store=store, known=list(store.rows.values()), **options).run()


def test_every_planned_row_is_measured_once_and_kept(recipes: Any, inference: Any, device: Any, store: Any) -> None:
    plan = make_plan(recipes(300), [inference(), inference("amp")], device=DEVICE)
    report = run(plan, device, store)
    assert set(store.rows) == set(plan.label_keys())
    assert len(device.measured) == len(store.rows) == report.measured == report.planned == 1800 + report.repeats
    assert 0.01 < report.repeats / 1800 < 0.03
    assert (report.stopped, report.remaining, report.not_tried) == (StopReason.FINISHED, 0, 0)
    assert sum(report.by_family.values()) == report.measured
    assert [(floor.metric, floor.pairs, floor.mean_difference_percent) for floor in report.noise] == [
        ("latency_ms", report.repeats, 0.0)
    ]
    assert device.open_calls == 0


def test_all_of_a_model_is_measured_before_the_next_one(recipes: Any, inference: Any, device: Any, store: Any) -> None:
    report = run(make_plan(recipes(20), [inference(), inference("amp")], device=DEVICE), device, store)
    models = [key for key, _ in groupby(key for key, _ in device.measured)]
    assert len(models) <= 20 + report.repeats
    assert len(device.measured) == 120 + report.repeats


def test_repeats_are_far_from_their_first(recipes: Any, inference: Any, device: Any, store: Any) -> None:
    plan = make_plan(recipes(1000), [inference()], device=DEVICE)
    run(plan, device, store)
    places: dict[Any, list[int]] = {}
    for place, asked in enumerate(device.measured):
        places.setdefault(asked, []).append(place)
    distances = [found[1] - found[0] for found in places.values() if len(found) == 2]
    assert len(distances) > 30
    near = [distance for distance in distances if distance < 300]
    # Only what was measured last of all cannot be repeated that late.
    assert len(near) <= 300 * 0.04


def test_larger_batches_are_not_tried_after_one_ran_out_of_memory(
    recipes: Any, inference: Any, device: Any, store: Any
) -> None:
    plan = make_plan(recipes(10, batches=(1, 2, 4, 8)), [inference(), inference("amp")], device=DEVICE)

    def rule(recipe: Any, configuration: Any) -> Outcome:
        is_full = configuration.batch >= 2 and configuration.conditions.precision == "fp32"
        return Outcome.OUT_OF_MEMORY if is_full else Outcome.OK

    device.rule = rule
    report = run(plan, device, store)
    assert report.not_tried == 10 * 2
    assert report.by_outcome["out-of-memory"] == 10
    assert report.remaining == 0
    asked = [(c.conditions.precision.value, c.batch) for _, c in device.measured]
    assert ("fp32", 4) not in asked
    assert asked.count(("amp", 8)) == 10
    # A later run comes to the same end without asking anything of the device.
    again = type(device)(rule=rule)
    second = run(plan, again, store)
    assert again.measured == []
    assert (second.not_tried, second.found, second.measured) == (20, report.measured, 0)


def test_smaller_batches_are_tried_after_a_larger_one_ran_out_of_memory(
    recipes: Any, inference: Any, device: Any, store: Any
) -> None:
    in_rounds = sorted(recipes(5, batches=(4, 1, 8, 2)), key=lambda recipe: (4, 1, 8, 2).index(recipe.batch))
    plan = make_plan(in_rounds, [inference()], device=DEVICE)
    device.rule = lambda recipe, configuration: (
        Outcome.OUT_OF_MEMORY if configuration.batch >= 2 and recipe.arguments["width"] == 3 else Outcome.OK
    )
    report = run(plan, device, store)
    asked = [(key, configuration.batch) for key, configuration in device.measured]
    full = next(recipe.model_key for recipe in in_rounds if recipe.arguments["width"] == 3)
    assert [batch for key, batch in dict.fromkeys(asked) if key == full] == [4, 1, 2]
    assert (report.not_tried, report.remaining) == (1, 0)
    # What an earlier run found to be full counts from the first row on, wherever it stands in the order.
    again = type(device)(rule=device.rule)
    reordered = make_plan(in_rounds[::-1], [inference()], device=DEVICE)
    second = run(reordered, again, store)
    assert (again.measured, second.not_tried, second.remaining) == ([], 1, 0)


def test_row_after_row_that_fails_ends_it_with_the_report(
    recipes: Any, inference: Any, device: Any, store: Any
) -> None:
    plan = make_plan(recipes(300), [inference()], device=DEVICE)
    device.rule = lambda recipe, configuration: Outcome.FAILED if recipe.arguments["width"] >= 5 else Outcome.OK
    with pytest.raises(CampaignStoppedError, match="--retry failed") as caught:
        run(plan, device, store)
    report = caught.value.report
    assert caught.value.code == "campaign.failing"
    assert (report.stopped, report.by_outcome) == (StopReason.FAILED, {"ok": 15, "failed": 10})
    assert report.measured + report.remaining == report.planned
    assert len(store.rows) == 25


@pytest.mark.parametrize("between", [Outcome.OUT_OF_MEMORY, Outcome.TIMED_OUT])
def test_what_is_not_failed_neither_counts_as_failed_nor_as_running(
    between: Outcome, recipes: Any, inference: Any, device: Any, store: Any
) -> None:
    plan = make_plan(recipes(60, batches=(1, 2)), [inference()], device=DEVICE)
    device.rule = lambda recipe, configuration: Outcome.FAILED if configuration.batch == 1 else between
    with pytest.raises(CampaignStoppedError) as caught:
        run(plan, device, store)
    assert caught.value.report.by_outcome == {"failed": 10, between.value: 9}


def test_one_bad_model_of_many_rows_ends_nothing(recipes: Any, inference: Any, device: Any, store: Any) -> None:
    plan = make_plan(recipes(4, batches=range(1, 21)), [inference()], device=DEVICE)
    device.rule = lambda recipe, configuration: Outcome.FAILED if recipe.arguments["width"] in (1, 2) else Outcome.OK
    report = run(plan, device, store)
    assert (report.stopped, report.by_outcome["failed"]) == (StopReason.FINISHED, 40)


def refuse_starts(device: Any, times: int) -> list[float]:
    """Let a device refuse its first starts; the list fills with the moments."""
    moments: list[float] = []

    def refuse() -> None:
        moments.append(time.monotonic())
        if len(moments) <= times:
            raise UnsupportedError("It did not start.", code="device.unavailable")

    device.on_measure = refuse
    return moments


def test_a_bad_start_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, recipes: Any, inference: Any, device: Any, store: Any
) -> None:
    monkeypatch.setattr(campaign_run, "_START_PAUSES_S", (0.05, 0.05))
    moments = refuse_starts(device, times=2)
    report = run(make_plan(recipes(2), [inference()], device=DEVICE), device, store)
    assert (report.stopped, report.by_outcome) == (StopReason.FINISHED, {"ok": report.planned})
    assert moments[1] - moments[0] >= 0.05 <= moments[2] - moments[1]


def test_a_device_that_is_gone_ends_it_with_the_report(
    monkeypatch: pytest.MonkeyPatch, recipes: Any, inference: Any, device: Any, store: Any
) -> None:
    monkeypatch.setattr(campaign_run, "_START_PAUSES_S", (0.0, 0.0))
    plan = make_plan(recipes(3), [inference()], device=DEVICE)
    run(make_plan(recipes(1), [inference()], device=DEVICE), device, store)
    found = len(store.rows)
    moments = refuse_starts(device, times=100)
    with pytest.raises(CampaignStoppedError, match="did not start") as caught:
        run(plan, device, store)
    assert (caught.value.code, caught.value.exit_status, len(moments)) == ("device.unavailable", 4, 3)
    assert (caught.value.report.found, caught.value.report.measured) == (found, 0)


def test_the_pause_before_another_start_ends_with_the_budget(
    recipes: Any, inference: Any, device: Any, store: Any
) -> None:
    refuse_starts(device, times=100)
    began = time.monotonic()
    # The first row needs 2 s by guess; the pause is longer.
    report = run(make_plan(recipes(3), [inference()], device=DEVICE), device, store, budget_s=2.5)
    assert time.monotonic() - began < 4.0
    assert (report.stopped, report.measured) == (StopReason.BUDGET, 0)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.NOT_FINITE])
def test_what_ends_badly_is_a_row_too(outcome: Outcome, recipes: Any, inference: Any, device: Any, store: Any) -> None:
    plan = make_plan(recipes(9, batches=(1,)), [inference()], device=DEVICE)
    device.rule = lambda recipe, configuration: outcome if recipe.arguments["width"] >= 6 else Outcome.OK
    report = run(plan, device, store)
    assert report.failures[0] == (outcome.value, f"because {outcome}", 3)
    assert set(store.rows) >= {task.key for task in plan.tasks()}
    assert {label.measurement.device for label in store.rows.values()} == {DEVICE}
    assert str(outcome) in str(report)


def test_rows_of_an_earlier_run_are_not_measured_again(recipes: Any, inference: Any, device: Any, store: Any) -> None:
    first = run(make_plan(recipes(100), [inference()], device=DEVICE), device, store)
    later = type(device)()
    plan = make_plan(recipes(200), [inference()], device=DEVICE)
    report = run(plan, later, store)
    assert report.found == first.measured
    assert set(store.rows) == set(plan.label_keys())
    assert report.measured == report.planned - first.measured == len(later.measured)


def test_a_second_pass_measures_what_the_first_has_measured_once(
    recipes: Any, inference: Any, device: Any, store: Any
) -> None:
    plans = [make_plan(recipes(200), [inference()], device=DEVICE, repeat=repeat) for repeat in range(2)]
    first = run(plans[0], device, store)
    later = type(device)()
    report = run(plans[1], later, store)
    assert report.found == first.repeats
    assert report.remaining == 0
    assert report.measured == report.repeats == len(later.measured)
    assert set(store.rows) == set(plans[0].label_keys()) | set(plans[1].label_keys())
    assert {noise.pairs for noise in report.noise} == {report.planned}


def test_a_second_pass_that_came_before_the_first_is_not_measured_again(
    recipes: Any, inference: Any, device: Any, store: Any
) -> None:
    plans = [make_plan(recipes(200), [inference()], device=DEVICE, repeat=repeat) for repeat in range(2)]
    run(plans[1], device, store)
    assert set(store.rows) == set(plans[1].label_keys())
    first = type(device)()
    report = run(plans[0], first, store)
    assert len(first.measured) == report.measured == len(list(plans[0].tasks()))
    assert report.repeats == report.remaining == 0


def test_repeats_that_an_earlier_run_left_are_made(recipes: Any, inference: Any, device: Any, store: Any) -> None:
    plan = make_plan(recipes(200), [inference()], device=DEVICE)
    run(plan, device, store)
    repeats = {task.repeat_key for task in plan.tasks()} - {None}
    assert repeats
    for key in repeats:
        del store.rows[key]
    later = type(device)()
    report = run(plan, later, store)
    assert len(later.measured) == len(repeats) == report.repeats
    assert set(store.rows) == set(plan.label_keys())


def test_the_budget_is_kept_and_leaves_time_for_repeats(recipes: Any, inference: Any, device: Any, store: Any) -> None:
    device.on_measure = lambda: time.sleep(0.01)
    plan = make_plan(recipes(2000), [inference()], device=DEVICE)
    began = time.monotonic()
    report = run(plan, device, store, budget_s=4.0)
    assert time.monotonic() - began < 5.0
    assert report.stopped is StopReason.BUDGET
    assert report.measured + report.remaining == report.planned
    assert report.repeats > 0
    assert report.rows_per_minute > 1000
    assert report.budget_left_s is not None
    assert report.budget_left_s < 1.0


def test_a_row_that_hangs_is_cut_off_by_the_budget(recipes: Any, inference: Any, device: Any, store: Any) -> None:
    device.on_measure = lambda: time.sleep(30) if len(device.measured) == 2 else None
    began = time.monotonic()
    report = run(make_plan(recipes(5), [inference()], device=DEVICE), device, store, budget_s=3.0)
    assert time.monotonic() - began < 5.0
    assert (report.stopped, report.measured, len(store.rows)) == (StopReason.BUDGET, 2, 2)
    assert device.open_calls == 0


@pytest.mark.parametrize(
    ("number", "stopped"), [(signal.SIGINT, StopReason.INTERRUPTED), (signal.SIGTERM, StopReason.TERMINATED)]
)
def test_a_signal_ends_it_with_the_report(
    number: signal.Signals, stopped: StopReason, recipes: Any, inference: Any, device: Any, store: Any
) -> None:
    before = signal.getsignal(number)

    def interrupt() -> None:
        if len(device.measured) == 4:
            os.kill(os.getpid(), number)
            time.sleep(30)

    device.on_measure = interrupt
    report = run(make_plan(recipes(5), [inference()], device=DEVICE), device, store)
    assert (report.stopped, report.measured, len(store.rows)) == (stopped, 4, 4)
    assert signal.getsignal(number) is before


def test_a_signal_while_a_row_is_written_waits_for_it(recipes: Any, inference: Any, device: Any, store: Any) -> None:
    written = []

    def slow_add(label: Any) -> None:
        if len(store.rows) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        written.append(label.key)

    store.on_add = slow_add
    report = run(make_plan(recipes(5), [inference()], device=DEVICE), device, store)
    assert written == list(store.rows)
    assert (report.stopped, report.measured) == (StopReason.INTERRUPTED, 3)


def test_a_full_disk_ends_it_and_a_later_run_goes_on(recipes: Any, inference: Any, device: Any, store: Any) -> None:
    plan = make_plan(recipes(10), [inference()], device=DEVICE)

    def refuse(label: Any) -> None:
        if len(store.rows) == 7:
            raise DippmError("The disk is full.", code="store.full")

    store.on_add = refuse
    with pytest.raises(DippmError, match="full"):
        run(plan, device, store)
    assert len(store.rows) == 7
    store.on_add = lambda label: None
    run(plan, type(device)(), store)
    assert set(store.rows) == set(plan.label_keys())


class FakeGraphs:
    def __init__(self, failing: str = "") -> None:
        self.queue: list[Any] = []
        self.failing = failing
        self.advanced_while_measuring = 0

    @property
    def pending(self) -> int:
        return len(self.queue)

    def add(self, recipe: Any) -> None:
        if recipe not in self.queue:
            self.queue.append(recipe)

    def advance(self, *, wait_s: float = 0.0) -> list[GraphHash]:
        self.advanced_while_measuring += wait_s == 0
        done, self.queue = self.queue, []
        return [
            GraphHash(model_key=recipe.model_key, graph_hash="", error="no")
            if recipe.model_key == self.failing
            else GraphHash(model_key=recipe.model_key, graph_hash="h" + recipe.model_key)
            for recipe in done
        ]


@pytest.mark.parametrize("is_beside", [True, False])
def test_every_model_gets_the_hash_of_its_graph(
    is_beside: bool, recipes: Any, inference: Any, device: Any, store: Any
) -> None:
    plan = make_plan(recipes(10), [inference()], device=DEVICE)
    keys = [model.recipe.model_key for model in plan.models]
    graphs: Any = FakeGraphs(failing=keys[3])
    report = run(plan, device, store, graphs=graphs, graphs_beside=is_beside)
    assert store.hashes == {key: "h" + key for key in keys if key != keys[3]}
    assert report.graphs_failed == {keys[3]: "no"}
    assert (report.graphs >= 9, report.graphs_pending) == (True, 0)
    assert (graphs.advanced_while_measuring > 0) is is_beside
    if is_beside:
        # A hash that is known when a later row of the model comes is stored with the row.
        assert sum(label.graph_hash != "" for label in store.rows.values()) >= 9 * 2


def test_progress_counts_up_to_the_whole_plan(recipes: Any, inference: Any, device: Any, store: Any) -> None:
    seen: list[Any] = []
    report = run(make_plan(recipes(30), [inference()], device=DEVICE), device, store, on_progress=seen.append)
    rows = [each for each in seen if each.label is not None]
    assert [each.done for each in rows] == list(range(1, report.planned + 1))
    assert [each.recipe for each in rows] == [each.label.recipe for each in rows]
    assert {each.total for each in seen} == {report.planned}
    assert math.isinf(seen[0].remaining_s)


def test_a_model_is_told_of_before_it_is_built(recipes: Any, inference: Any, device: Any, store: Any) -> None:
    seen: list[Any] = []
    known_at_build: list[str] = []
    device.on_measure = lambda: known_at_build.append(seen[-1].recipe.model_key)
    made = recipes(3)
    report = run(make_plan(made, [inference()], device=DEVICE), device, store, on_progress=seen.append)
    assert known_at_build == [key for key, _ in device.measured]
    # Once for each model in its turn, second measurements included, and not for every batch.
    turns = [key for key, _ in groupby(key for key, _ in device.measured)]
    told = [each for each in seen if each.label is None]
    assert [each.recipe.model_key for each in told] == turns
    assert (told[0].done, told[0].total, told[0].recipe.batch) == (0, report.planned, 1)
    assert seen[0] is told[0]


def test_report_as_json_and_text(recipes: Any, inference: Any, device: Any, store: Any) -> None:
    device.busy_s = 1e9
    report = run(make_plan(recipes(3), [inference()], device=DEVICE), device, store, budget_s=60)
    values = report.to_dict()
    assert values["busy_share"] == 1.0
    assert values["stopped"] == "finished"
    assert values["measured"] == report.measured
    assert f"{report.measured} measured" in str(report)
    assert "measuring 100 %" in str(report)
    assert DEVICE in str(report)


def test_the_speed_counts_results_alone(recipes: Any, inference: Any, device: Any, store: Any) -> None:
    device.on_measure = lambda: time.sleep(0.005)
    outcomes = {1: Outcome.OK, 2: Outcome.FAILED, 3: Outcome.OUT_OF_MEMORY}
    device.rule = lambda recipe, configuration: (
        Outcome.TIMED_OUT if recipe.arguments["width"] == 5 else outcomes[configuration.batch]
    )
    report = run(make_plan(recipes(8, batches=(1, 2, 3)), [inference()], device=DEVICE), device, store)
    results = report.by_outcome["ok"] + report.by_outcome["out-of-memory"]
    assert (report.by_outcome["failed"], report.by_outcome["timed-out"], report.not_tried) == (7, 1, 2)
    assert report.rows_per_minute == pytest.approx(60 * results / report.measuring_s)


def test_two_campaigns_may_share_a_store(recipes: Any, inference: Any, device: Any, store: Any) -> None:
    plan = make_plan(recipes(20), [inference()], device=DEVICE)
    first = Campaign(plan, measurer=device, store=store, known=[])
    second = Campaign(plan, measurer=type(device)(), store=store, known=[]).run()
    assert second.measured == second.planned
    assert first.run().measured == 0
    assert set(store.rows) == set(plan.label_keys())


def test_it_runs_in_any_thread(recipes: Any, inference: Any, device: Any, store: Any) -> None:
    device.on_measure = lambda: time.sleep(0.01)
    plan = make_plan(recipes(500), [inference()], device=DEVICE)
    with ThreadPoolExecutor(1) as pool:
        report = pool.submit(run, plan, device, store, budget_s=3.0).result()
    assert report.stopped is StopReason.BUDGET
    assert 0 < report.measured == len(store.rows) < report.planned
