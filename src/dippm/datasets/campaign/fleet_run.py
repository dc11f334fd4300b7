"""Runs a plan on several devices: models are leased to them, and rows kept as they come.

A lease is the open rows of one model, so that a device builds it once. The rows are handed out one by one: what follows
depends on how the one before ended, and whatever happens to a device costs the row under way alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dippm.datasets.campaign.fleet import Answer, Fleet, Member
from dippm.datasets.campaign.graph_hashes import GraphHashes
from dippm.datasets.campaign.ledger import REPEAT_DISTANCE, FailureStreak, LabelSink, Ledger, Progress
from dippm.datasets.campaign.plan import Plan, Task
from dippm.datasets.campaign.report import CampaignReport, FleetTally
from dippm.datasets.campaign.stopping import StopRequested
from dippm.datasets.recipes.building import RecipeSource
from dippm.datasets.store.label import Label
from dippm.measuring.measurement import Measurement, Outcome

__all__ = ["FleetCampaign"]

_POLL_S = 0.5
# A row that failed, or took its process with it, is kept as failed when so many processes agree.
_TRIALS = 2
# A row under way for so many times what a row takes, and no less than this, is given to an idle device as well.
_STRAGGLER_TIMES, _STRAGGLER_LEAST_S = 10.0, 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Job:
    """One row to be."""

    task: Task
    repeat: int = 0

    @property
    def key(self) -> str:
        if self.repeat and self.task.repeat_key is not None:
            return self.task.repeat_key
        return self.task.key


@dataclass(kw_only=True, slots=True)
class _Lease:
    """Rows that one device measures, one after the other."""

    jobs: deque[_Job]
    avoid: frozenset[str] = frozenset()  # places on which the first of them went wrong

    @property
    def model_key(self) -> str | None:
        """The model whose first measurements these are."""
        return next((job.task.recipe.model_key for job in self.jobs if not job.repeat), None)


@dataclass(kw_only=True, slots=True)
class _UnderWay:
    member: Member
    job: _Job
    since_s: float = field(default_factory=time.monotonic)
    is_shared: bool = False  # whether another device measures the same row


class FleetCampaign:
    """One run over a plan on several devices; see :meth:`run`.

    Args:
        plan: What to measure; its device is the fleet's.
        fleet: Measures.
        store: Keeps the labels.
        known: Labels of the device that the store holds: they are not measured again.
        graphs: Reads graphs in the background; None for no graphs.
        graphs_beside: Whether graphs are read while the devices measure; else afterwards.
        budget_s: Time to end within, s; None for no limit.
        began_s: When the clock of the budget started, as :func:`time.monotonic` tells it; now when left out.
        on_progress: Called after every row, and when a device begins to build a model.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        fleet: Fleet,
        store: LabelSink,
        known: Iterable[Label] = (),
        graphs: GraphHashes | None = None,
        graphs_beside: bool = True,
        budget_s: float | None = None,
        began_s: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._fleet = fleet
        self._ledger = Ledger(
            plan,
            store=store,
            known=known,
            graphs=graphs,
            graphs_beside=graphs_beside,
            budget_s=budget_s,
            began_s=began_s,
            on_progress=on_progress,
        )
        self._tally = FleetTally()
        self._models = deque(plan.models)
        self._returned: deque[_Lease] = deque()  # what is left of lost leases
        self._leases: dict[str, _Lease] = {}  # by the member's name
        self._under_way: dict[str, _UnderWay] = {}  # by the member's name
        self._built: dict[str, str] = {}  # by the member's name, key of the model that it was asked for last
        self._trials: dict[str, list[str]] = {}  # by the row's key, the places where it went wrong
        self._streaks: dict[str, FailureStreak] = {}  # by place
        self._is_closing = False  # whether the budget allows of second measurements alone

    def run(self) -> CampaignReport:
        """Measure until the plan or the budget ends, or a signal comes; then read the graphs that are left.

        Where the budget or a signal ends it, rows under way are given up.

        Raises:
            CampaignStoppedError: A row cannot be stored, no device is left (``cluster.no_workers``), or row after row
                fails on every one (``campaign.failing``). It holds the report; all rows before are in the store.
        """
        return self._ledger.run(self._measure_all, busy_s=lambda: self._fleet.busy_s, fleet=self._tally)

    def _measure_all(self) -> bool:
        while True:
            self._issue()
            if not self._has_work():
                return not self._is_closing and not self._ledger.repeats
            if self._ledger.stopper.reason is not None:
                raise StopRequested
            since_s = time.monotonic()
            answers = self._fleet.wait(_POLL_S)
            devices = len(self._fleet.members())
            self._tally.devices = max(self._tally.devices, devices)
            self._tally.device_s += devices * (time.monotonic() - since_s)
            for answer in answers:
                # Asked to stop while rows of the same moment are still to be kept: it is done above.
                with suppress(StopRequested):
                    self._settle(answer)

    def _has_work(self) -> bool:
        """Whether anything is under way that is not settled, or waits for a device that is to come."""
        if any(not self._ledger.is_settled(each.job.key) for each in self._under_way.values()):
            return True
        if self._is_closing:
            return False
        return bool(self._models or self._returned or self._leases or self._ledger.repeats)

    def _issue(self) -> None:
        """Give a row to every device that has none."""
        for member in self._fleet.members():
            if member.name in self._under_way:
                continue
            job = self._next_job(member)
            if job is not None:
                self._under_way[member.name] = _UnderWay(member=member, job=job)
                self._fleet.submit(member, RecipeSource(job.task.recipe), job.task.configuration)
                self._tell_of_build(member, job.task)

    def _tell_of_build(self, member: Member, task: Task) -> None:
        if self._built.get(member.name) != task.recipe.model_key:
            self._built[member.name] = task.recipe.model_key
            self._ledger.tell_of_build(task)

    def _next_job(self, member: Member) -> _Job | None:
        while True:
            lease = self._leases.get(member.name)
            while lease is not None and lease.jobs:
                job = lease.jobs.popleft()
                if self._is_to_do(job):
                    return job
            self._leases.pop(member.name, None)
            lease = next(self._find_leases(member), None)
            if lease is None:
                return None
            self._leases[member.name] = lease

    def _is_to_do(self, job: _Job) -> bool:
        if job.repeat:
            if self._ledger.is_settled(job.key):
                return False
            has_time = self._ledger.has_time_for(1)
            self._is_closing = self._is_closing or not has_time
            return has_time
        if self._is_closing or not self._ledger.is_open(job.task):
            return False
        # Second measurements wait for the end of a short budget: the time for them is kept free.
        devices = max(len(self._fleet.members()), 1)
        self._is_closing = not self._ledger.has_time_for(1 + len(self._ledger.repeats) / devices)
        return not self._is_closing

    def _find_leases(self, member: Member) -> Iterator[_Lease]:
        """What there is for an idle device to do, the most pressing first; whoever takes one takes the first."""
        yield from self._take_returned(member)
        yield from self._take_repeat()
        yield from self._take_model()
        yield from self._take_straggler(member)

    def _take_returned(self, member: Member) -> Iterator[_Lease]:
        places = {each.place for each in self._fleet.members()}
        for lease in list(self._returned):
            # Not to where it went wrong, unless there is no other.
            if member.place not in lease.avoid or places <= lease.avoid:
                self._returned.remove(lease)
                yield lease

    def _take_repeat(self) -> Iterator[_Lease]:
        ledger = self._ledger
        # So far apart on each device as in a campaign on one.
        distance = REPEAT_DISTANCE * max(len(self._fleet.members()), 1)
        for repeat in list(ledger.repeats):
            if self._is_closing:
                is_due = ledger.is_due_at_last(repeat)
            else:
                is_due = not self._models or ledger.is_due(repeat, distance=distance)
            if is_due and not ledger.has_time_for(1):
                self._is_closing = True
                return
            if is_due:
                ledger.repeats.remove(repeat)
                yield _Lease(jobs=deque([_Job(task=repeat.task, repeat=1)]))

    def _take_model(self) -> Iterator[_Lease]:
        # A model that comes again with other batches waits for its first ones: which batches are tried depends on them.
        leased = {lease.model_key for lease in (*self._leases.values(), *self._returned)}
        leased |= {each.job.task.recipe.model_key for each in self._under_way.values() if not each.job.repeat}
        for model in list(self._models):
            if self._is_closing:
                return
            if model.recipe.model_key in leased:
                continue
            self._models.remove(model)
            self._ledger.queue_old_repeats(model)
            jobs = deque(_Job(task=task) for task in model.tasks if self._ledger.is_open(task))
            if jobs:
                yield _Lease(jobs=jobs)

    def _take_straggler(self, member: Member) -> Iterator[_Lease]:
        limit_s = max(_STRAGGLER_TIMES * self._ledger.row_s, _STRAGGLER_LEAST_S)
        now_s = time.monotonic()
        for each in list(self._under_way.values()):
            is_late = now_s - each.since_s > limit_s and not self._ledger.is_settled(each.job.key)
            if not is_late or each.is_shared or each.member.place == member.place:
                continue
            each.is_shared = True
            self._tally.reissued += 1
            rest = self._leases.pop(each.member.name, None)
            yield _Lease(jobs=deque([each.job, *(rest.jobs if rest is not None else ())]))

    def _settle(self, answer: Answer) -> None:
        under_way = self._under_way.pop(answer.member.name, None)
        if answer.measurement is None:
            self._lose(answer, under_way)
        elif under_way is not None:
            self._settle_row(answer.member, under_way, answer.measurement)

    def _settle_row(self, member: Member, under_way: _UnderWay, measurement: Measurement) -> None:
        job = under_way.job
        streak = self._streaks.setdefault(member.place, FailureStreak())
        streak.add(job.task, measurement)
        if not self._ledger.is_settled(job.key):
            self._ledger.count_time(time.monotonic() - under_way.since_s)
            if measurement.outcome is Outcome.FAILED and self._is_worth_another(job, member):
                self._give_back([job], avoid=self._trials[job.key])
            else:
                self._ledger.keep(job.task, measurement, repeat=job.repeat)
        if streak.is_fault:
            # Where one device of many is at fault, its rows are done by the others; else they would all be lost to it.
            self._tally.set_aside += 1
            is_any_left = self._fleet.set_aside(member.place)
            rest = self._leases.pop(member.name, None)
            if rest is not None:
                self._give_back(rest.jobs)
            if not is_any_left:
                raise streak.make_error(measurement.message)

    def _is_worth_another(self, job: _Job, member: Member) -> bool:
        """Whether a row that failed is to be tried on another device; notes where it failed."""
        trials = self._trials.setdefault(job.key, [])
        trials.append(member.place)
        others = {each.place for each in self._fleet.members()} - set(trials)
        return len(trials) < _TRIALS and bool(others)

    def _lose(self, answer: Answer, under_way: _UnderWay | None) -> None:
        self._tally.lost += 1
        lease = self._leases.pop(answer.member.name, None)
        rest = [] if lease is None else list(lease.jobs)
        if under_way is None or self._ledger.is_settled(under_way.job.key):
            self._give_back(rest)
            return
        job = under_way.job
        if any(each.job.key == job.key for each in self._under_way.values()):
            self._give_back(rest)
            return
        trials = self._trials.setdefault(job.key, [])
        trials.append(answer.member.place)
        if len(trials) < _TRIALS:
            self._give_back([job, *rest], avoid=trials)
            return
        self._give_back(rest)
        message = f"{_TRIALS} measuring processes were lost with it, the last: {answer.lost}"
        failed = Measurement(
            outcome=Outcome.FAILED,
            message=message,
            device=self._fleet.device_name,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self._ledger.keep(job.task, failed, repeat=job.repeat)

    def _give_back(self, jobs: Iterable[_Job], *, avoid: Iterable[str] = ()) -> None:
        """Let other devices do what one did not."""
        lease = _Lease(jobs=deque(jobs), avoid=frozenset(avoid))
        if lease.jobs:
            self._tally.moved += bool(lease.avoid)
            self._returned.append(lease)
