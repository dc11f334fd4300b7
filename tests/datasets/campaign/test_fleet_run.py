"""Models leased to several devices: the same table as on one, whatever becomes of the devices."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dippm.datasets.campaign import fleet_run
from dippm.datasets.campaign.fleet import Answer, Member
from dippm.datasets.campaign.fleet_run import FleetCampaign
from dippm.datasets.campaign.plan import Plan, make_plan
from dippm.datasets.campaign.report import CampaignReport, CampaignStoppedError
from dippm.datasets.campaign.run import Campaign
from dippm.datasets.campaign.stopping import StopReason
from dippm.errors import DippmError
from dippm.measuring.measurement import Measurement, Outcome

DEVICE = "Test Device"


class FakeFleet:
    """Devices in memory; what they were asked is answered in an order that the seed gives, some at a time."""

    device_name = DEVICE
    busy_s = 0.0

    def __init__(self, devices: int, *, seed: int = 0) -> None:
        self._random = random.Random(seed)  # noqa: S311 - an order, not secrets
        self._members = [Member(name=f"{place}#0", place=f"gpu{place}") for place in range(devices)]
        self._asked: dict[str, tuple[Member, Any, Any]] = {}
        self._started = 0
        self.aside: list[str] = []
        self.rule: Callable[[Any, Any, Member], Outcome | None] = lambda recipe, configuration, member: Outcome.OK
        self.is_slow: Callable[[Any, Any, Member], bool] = lambda recipe, configuration, member: False
        self.is_replacing = True
        self.asked: list[tuple[str, str, int]] = []  # place, model, batch
        self.on_wait: Callable[[], None] = lambda: None

    def members(self) -> Sequence[Member]:
        return list(self._members)

    def submit(self, member: Member, source: Any, configuration: Any) -> None:
        assert member in self._members
        assert member.name not in self._asked
        self._asked[member.name] = (member, source.recipe, configuration)
        self.asked.append((member.place, source.recipe.model_key, configuration.batch))

    def wait(self, timeout_s: float) -> list[Answer]:
        self.on_wait()
        if not self._members:
            raise DippmError("No device is left.", code="cluster.no_workers")
        ready = [each for each in self._asked.values() if not self.is_slow(each[1], each[2], each[0])]
        if not ready:
            time.sleep(min(timeout_s, 0.01))
            return []
        answers = []
        for member, recipe, configuration in self._random.sample(ready, self._random.randint(1, len(ready))):
            del self._asked[member.name]
            outcome = self.rule(recipe, configuration, member)
            if outcome is None:
                self._lose(member)
                answers.append(Answer(member=member, measurement=None, lost="its machine is gone"))
                continue
            measurement = Measurement(
                outcome=outcome,
                message="" if outcome is Outcome.OK else f"because {outcome}",
                device=DEVICE,
                measured_at="2026-01-01T00:00:00Z",
                latency_ms=float(recipe.arguments["width"]) if outcome is Outcome.OK else None,
            )
            answers.append(Answer(member=member, measurement=measurement))
        return answers

    def set_aside(self, place: str) -> bool:
        self.aside.append(place)
        self._members = [member for member in self._members if member.place != place]
        return bool(self._members)

    def join(self) -> None:
        self._started += 1
        self._members.append(Member(name=f"new#{self._started}", place=f"new{self._started}"))

    def _lose(self, member: Member) -> None:
        self._members.remove(member)
        if self.is_replacing:
            self._started += 1
            self._members.append(Member(name=f"{member.place}#{self._started}", place=member.place))


def run(plan: Plan, fleet: FakeFleet, store: Any, **options: Any) -> CampaignReport:
    return FleetCampaign(plan, fleet=fleet, store=store, known=list(store.rows.values()), **options).run()


def rule_of(recipe: Any, configuration: Any) -> Outcome:
    number = recipe.arguments["width"]
    if number % 7 == 0 and configuration.batch >= 4:
        return Outcome.OUT_OF_MEMORY
    return Outcome.FAILED if number % 23 == 5 else Outcome.OK


@pytest.fixture(name="plan")
def _plan(recipes: Any, inference: Any) -> Plan:
    # Every model comes in two rounds, the second one with larger and smaller batches.
    rounds = [*recipes(120, batches=(2, 4)), *recipes(120, batches=(1, 8))]
    return make_plan(rounds, [inference(), inference("amp")], device=DEVICE)


@pytest.fixture(name="alone")
def _alone(plan: Plan, device: Any, store: Any) -> tuple[CampaignReport, dict[str, Any]]:
    """What a campaign on one device comes to."""
    device.rule = rule_of
    own = type(store)()
    report = Campaign(plan, measurer=device, store=own).run()
    return report, {key: row.measurement.outcome for key, row in own.rows.items()}


@pytest.mark.parametrize("devices", [1, 2, 7])
def test_the_table_is_that_of_one_device(devices: int, plan: Plan, alone: Any, store: Any) -> None:
    fleet = FakeFleet(devices, seed=devices)
    fleet.rule = lambda recipe, configuration, member: rule_of(recipe, configuration)
    report = run(plan, fleet, store)
    expected, rows = alone
    assert {key: row.measurement.outcome for key, row in store.rows.items()} == rows
    assert (report.stopped, report.remaining) == (StopReason.FINISHED, 0)
    assert (report.planned, report.measured, report.repeats) == (expected.planned, expected.measured, expected.repeats)
    assert report.not_tried == expected.not_tried > 0
    assert report.fleet is not None
    assert report.fleet.devices == devices
    # Rows that failed were tried once more on another device, where there was one.
    failed = sum(outcome is Outcome.FAILED for outcome in rows.values())
    assert len(fleet.asked) == report.measured + (failed if devices > 1 else 0)
    assert {place for place, _, _ in fleet.asked} == {f"gpu{place}" for place in range(devices)}


def test_a_model_is_on_one_device_at_a_time(plan: Plan, store: Any) -> None:
    fleet = FakeFleet(4)
    run(plan, fleet, store)
    places: dict[str, set[str]] = {}
    for place, model, batch in fleet.asked[: len(fleet.asked) * 9 // 10]:
        places.setdefault(f"{model}/{batch in (1, 8)}", set()).add(place)
    moved = [found for found in places.values() if len(found) > 1]
    # Second measurements alone go where they like.
    assert len(moved) <= len(fleet.asked) * 0.03


def test_devices_that_are_lost_at_random_change_nothing(plan: Plan, alone: Any, store: Any) -> None:
    fleet = FakeFleet(3, seed=5)
    chance = random.Random(8)  # noqa: S311 - an accident, not a secret
    lost: set[tuple[str, int, str]] = set()

    def rule(recipe: Any, configuration: Any, member: Member) -> Outcome | None:
        key = (recipe.model_key, configuration.batch, configuration.conditions.precision)
        # Not twice on one row: that would be taken for the row's own fault.
        if chance.random() < 0.1 and key not in lost:
            lost.add(key)
            return None
        return rule_of(recipe, configuration)

    fleet.rule = rule
    report = run(plan, fleet, store)
    assert {key: row.measurement.outcome for key, row in store.rows.items()} == alone[1]
    assert report.fleet is not None
    assert report.fleet.lost == len(lost) > 50
    assert report.fleet.moved >= len(lost)


def test_what_takes_two_processes_with_it_is_a_failed_row(recipes: Any, inference: Any, store: Any) -> None:
    plan = make_plan(recipes(10), [inference()], device=DEVICE)
    fleet = FakeFleet(3)
    places: list[str] = []

    def rule(recipe: Any, configuration: Any, member: Member) -> Outcome | None:
        if recipe.arguments["width"] == 4 and configuration.batch == 2:
            places.append(member.place)
            return None
        return Outcome.OK

    fleet.rule = rule
    report = run(plan, fleet, store)
    assert len(places) == len(set(places)) == 2
    assert report.by_outcome == {"ok": report.planned - 1, "failed": 1}
    (reason,) = [reason for outcome, reason, _ in report.failures if outcome == "failed"]
    assert "2 measuring processes were lost" in reason
    assert "its machine is gone" in reason


def test_the_last_device_does_what_it_was_lost_on(recipes: Any, inference: Any, store: Any) -> None:
    plan = make_plan(recipes(5), [inference()], device=DEVICE)
    fleet = FakeFleet(1)
    fleet.rule = lambda recipe, configuration, member: None if len(fleet.asked) == 4 else Outcome.OK
    report = run(plan, fleet, store)
    assert (report.by_outcome, report.remaining) == ({"ok": report.planned}, 0)


def test_a_device_on_which_all_fails_is_set_aside(recipes: Any, inference: Any, store: Any) -> None:
    plan = make_plan(recipes(60), [inference()], device=DEVICE)
    fleet = FakeFleet(3)
    fleet.rule = lambda recipe, configuration, member: Outcome.FAILED if member.place == "gpu1" else Outcome.OK
    report = run(plan, fleet, store)
    assert fleet.aside == ["gpu1"]
    assert report.by_outcome == {"ok": report.planned}
    assert report.fleet is not None
    assert report.fleet.set_aside == 1


def test_where_all_fails_everywhere_it_ends_with_the_report(recipes: Any, inference: Any, store: Any) -> None:
    plan = make_plan(recipes(60), [inference()], device=DEVICE)
    fleet = FakeFleet(3)
    fleet.rule = lambda recipe, configuration, member: Outcome.FAILED
    with pytest.raises(CampaignStoppedError, match="--retry failed") as caught:
        run(plan, fleet, store)
    assert caught.value.code == "campaign.failing"
    assert sorted(fleet.aside) == ["gpu0", "gpu1", "gpu2"]
    assert len(store.rows) == caught.value.report.measured <= 20


def test_a_row_that_takes_too_long_is_given_to_an_idle_device(
    monkeypatch: pytest.MonkeyPatch, recipes: Any, inference: Any, store: Any
) -> None:
    monkeypatch.setattr(fleet_run, "_STRAGGLER_LEAST_S", 0.05)
    monkeypatch.setattr(fleet_run, "_STRAGGLER_TIMES", 0.0)
    plan = make_plan(recipes(6), [inference()], device=DEVICE)
    fleet = FakeFleet(2)
    slow = plan.models[2].recipe.model_key
    fleet.is_slow = lambda recipe, configuration, member: (
        recipe.model_key == slow and (member.place == next(place for place, model, _ in fleet.asked if model == slow))
    )
    report = run(plan, fleet, store)
    assert set(store.rows) == set(plan.label_keys())
    assert report.fleet is not None
    assert report.fleet.reissued == 1
    assert [batch for _, model, batch in fleet.asked if model == slow] == [1, 1, 2, 4]


def test_a_row_that_comes_twice_is_kept_once(
    monkeypatch: pytest.MonkeyPatch, recipes: Any, inference: Any, store: Any
) -> None:
    monkeypatch.setattr(fleet_run, "_STRAGGLER_LEAST_S", 0.02)
    monkeypatch.setattr(fleet_run, "_STRAGGLER_TIMES", 0.0)
    plan = make_plan(recipes(2, batches=(1, 2)), [inference()], device=DEVICE)
    fleet = FakeFleet(2, seed=3)
    began = time.monotonic()
    # Both devices hold their rows back until each has been given the other's too.
    fleet.is_slow = lambda recipe, configuration, member: time.monotonic() - began < 0.2
    seen: list[Any] = []
    report = run(plan, fleet, store, on_progress=seen.append)
    rows = [each for each in seen if each.label is not None]
    assert len(store.rows) == report.measured == report.planned == len(rows)


def test_the_models_that_devices_build_are_told_of(recipes: Any, inference: Any, store: Any) -> None:
    plan = make_plan(recipes(6, batches=(1, 2)), [inference()], device=DEVICE)
    fleet = FakeFleet(2)
    seen: list[Any] = []
    run(plan, fleet, store, on_progress=seen.append)
    told = [each.recipe.model_key for each in seen if each.label is None]
    first = [model.recipe.model_key for model in plan.models]
    assert told[:2] == first[:2]
    assert [each.label for each in seen[:2]] == [None, None]
    # Once for each device that has it: a second measurement may be another's.
    assert len(told) == len({(place, key) for place, key, _ in fleet.asked})


def test_a_device_that_joins_is_used(recipes: Any, inference: Any, store: Any) -> None:
    plan = make_plan(recipes(40), [inference()], device=DEVICE)
    fleet = FakeFleet(1)
    fleet.on_wait = lambda: fleet.join() if len(fleet.asked) == 20 and len(fleet.members()) == 1 else None
    report = run(plan, fleet, store)
    assert sum(place == "new1" for place, _, _ in fleet.asked) > 20
    assert report.fleet is not None
    assert (report.fleet.devices, report.remaining) == (2, 0)


def test_without_devices_it_ends_with_the_report_and_goes_on_later(plan: Plan, alone: Any, store: Any) -> None:
    fleet = FakeFleet(2)
    fleet.is_replacing = False

    def rule(recipe: Any, configuration: Any, member: Member) -> Outcome | None:
        return None if len(fleet.asked) > 200 else rule_of(recipe, configuration)

    fleet.rule = rule
    with pytest.raises(CampaignStoppedError) as caught:
        run(plan, fleet, store)
    assert caught.value.code == "cluster.no_workers"
    assert caught.value.report.measured == len(store.rows)
    assert 150 < len(store.rows) <= 200
    fresh = FakeFleet(2)
    fresh.rule = lambda recipe, configuration, member: rule_of(recipe, configuration)
    run(plan, fresh, store)
    assert {key: row.measurement.outcome for key, row in store.rows.items()} == alone[1]
    # One more run finds nothing to do.
    again = FakeFleet(2)
    assert (run(plan, again, store).measured, again.asked) == (0, [])


def test_a_full_disk_ends_it(recipes: Any, inference: Any, store: Any) -> None:
    def refuse(label: Any) -> None:
        if len(store.rows) == 7:
            raise DippmError("The disk is full.", code="store.full")

    store.on_add = refuse
    with pytest.raises(CampaignStoppedError) as caught:
        run(make_plan(recipes(10), [inference()], device=DEVICE), FakeFleet(2), store)
    assert (caught.value.code, caught.value.report.measured, len(store.rows)) == ("store.full", 7, 7)


@pytest.mark.parametrize(
    ("number", "stopped"), [(signal.SIGINT, StopReason.INTERRUPTED), (signal.SIGTERM, StopReason.TERMINATED)]
)
def test_a_signal_ends_it_with_the_report(
    number: signal.Signals, stopped: StopReason, recipes: Any, inference: Any, store: Any
) -> None:
    fleet = FakeFleet(2)
    fleet.on_wait = lambda: signal.raise_signal(number) if len(fleet.asked) > 30 else None
    report = run(make_plan(recipes(100), [inference()], device=DEVICE), fleet, store)
    assert report.stopped is stopped
    assert 25 <= report.measured == len(store.rows) <= 40
    assert report.measured + report.remaining == report.planned


def test_it_ends_within_its_budget_with_second_measurements(recipes: Any, inference: Any, store: Any) -> None:
    fleet = FakeFleet(2)
    fleet.on_wait = lambda: time.sleep(0.002)
    plan = make_plan(recipes(5000), [inference()], device=DEVICE)
    began = time.monotonic()
    report = run(plan, fleet, store, budget_s=4.0)
    assert time.monotonic() - began < 5.0
    assert report.stopped is StopReason.BUDGET
    assert report.measured + report.remaining == report.planned
    assert report.repeats > 0


def test_rows_under_way_when_the_budget_ends_are_given_up(recipes: Any, inference: Any, store: Any) -> None:
    fleet = FakeFleet(2)
    fleet.is_slow = lambda recipe, configuration, member: len(fleet.asked) > 4
    began = time.monotonic()
    report = run(make_plan(recipes(5), [inference()], device=DEVICE), fleet, store, budget_s=3.0)
    assert time.monotonic() - began < 4.0
    assert (report.stopped, report.measured) == (StopReason.BUDGET, len(store.rows))


def test_the_report_tells_of_the_fleet(recipes: Any, inference: Any, store: Any) -> None:
    fleet = FakeFleet(2)
    report = run(make_plan(recipes(3), [inference()], device=DEVICE), fleet, store)
    assert report.to_dict()["fleet"] == {
        "devices": 2,
        "device_s": pytest.approx(0.0, abs=1.0),
        "lost": 0,
        "set_aside": 0,
        "moved": 0,
        "reissued": 0,
    }
    assert "2 devices at most" in str(report)
