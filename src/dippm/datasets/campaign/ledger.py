"""What a campaign knows: which rows are settled, which are open, which wait for a second measurement."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from dippm.datasets.campaign.graph_hashes import GraphHashes
from dippm.datasets.campaign.out_of_reach import OutOfReach
from dippm.datasets.campaign.plan import ModelPlan, Plan, Task, is_chosen_for_repeat
from dippm.datasets.campaign.report import CampaignReport, CampaignStoppedError, FleetTally, Tally
from dippm.datasets.campaign.stopping import Stopper, StopReason, StopRequested
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.statistics import find_noise_floors
from dippm.datasets.store.label import Label
from dippm.errors import DippmError
from dippm.measuring.measurement import Measurement, Outcome

__all__ = ["REPEAT_DISTANCE", "FailureStreak", "LabelSink", "Ledger", "Progress", "Repeat"]

REPEAT_DISTANCE = 300
"""Rows that a device measures between a first and a second measurement, where there are so many."""

_FIRST_GUESS_S = 2.0
_SMOOTHING = 0.1
_GRAPH_WAIT_S = 0.5
# So many failures on end, of more than one or two bad models, are the machine's fault.
_FAILED_ROWS, _FAILED_MODELS = 10, 3
# What remains of a budget when measuring stops at the latest: ending the measuring process and reporting take time.
_CLOSING_SHARE, _CLOSING_AT_MOST_S = 0.05, 3.0


class LabelSink(Protocol):
    """Where labels go: :class:`dippm.datasets.store.label_store.LabelStore`."""

    def add(self, label: Label) -> bool:
        """Keep a label for good; False where there is one of its key."""
        ...

    def set_graph_hash(self, model_key: str, graph_hash: str) -> int:
        """Give all labels of a model the hash of its graph."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a campaign is.

    Args:
        done: Rows of the plan that are settled: measured, found or not tried.
        total: Rows of the plan.
        recipe: The model and batch of that row, or of the one that a device builds the model for.
        label: The row that was just measured; None where a device begins to build another model.
        remaining_s: Time until its budget ends, s; infinite without one.
    """

    done: int
    total: int
    recipe: Recipe
    label: Label | None
    remaining_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeat:
    """A second measurement that is to be made.

    Args:
        task: What was measured before.
        position: Rows measured before its first measurement; far below 0 for one of an earlier run.
    """

    task: Task
    position: int


class FailureStreak:
    """Failures on end of one device."""

    def __init__(self) -> None:
        self._models: list[str] = []  # the models of the rows that failed since one ran

    def add(self, task: Task, measurement: Measurement) -> None:
        """Count a row."""
        if measurement.outcome in (Outcome.OK, Outcome.NOT_FINITE):
            self._models.clear()
        elif measurement.outcome is Outcome.FAILED:
            self._models.append(task.recipe.model_key)

    @property
    def is_fault(self) -> bool:
        """Whether they are too many, of too many models, to be the models' own."""
        return len(self._models) >= _FAILED_ROWS and len(set(self._models)) >= _FAILED_MODELS

    def make_error(self, message: str) -> DippmError:
        """The error that ends a campaign: one fault of the machine must not mark a whole collection.

        Args:
            message: What the last one failed with.
        """
        rows, models = len(self._models), len(set(self._models))
        return DippmError(
            f"{rows} rows of {models} models failed and none ran in between, the last with: {message}",
            code="campaign.failing",
            cure="Mend the cause, then go on with --resume --retry failed.",
        )


class Ledger:
    """The books of one run over a plan, whoever measures.

    Args:
        plan: What to measure.
        store: Keeps the labels.
        known: Labels of the device that the store holds: they are not measured again.
        graphs: Reads graphs in the background; None for no graphs.
        graphs_beside: Whether graphs are read while the device measures.
        budget_s: Time to end within, s; None for no limit.
        began_s: When the clock of the budget started, as :func:`time.monotonic` tells it; now when left out.
        on_progress: Called after every row, and when a device begins to build a model.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        store: LabelSink,
        known: Iterable[Label],
        graphs: GraphHashes | None,
        graphs_beside: bool,
        budget_s: float | None,
        began_s: float | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._plan = plan
        self._store = store
        self._outcomes: dict[str, Outcome] = {}
        self._graph_hashes: dict[str, str] = {}
        self._measured_twice: list[Label] = []
        self._out_of_reach = OutOfReach(plan.row_limit_s)
        for label in known:
            self._note(label)
        self._graphs = graphs
        self._graphs_beside = graphs_beside
        self._budget_s = budget_s
        self._on_progress = on_progress
        self._keys = frozenset(plan.label_keys())
        self._found = len(self._keys & self._outcomes.keys())
        self._tally = Tally()
        self._not_tried: set[str] = set()
        self._row_s = _FIRST_GUESS_S
        self._graph_errors: dict[str, str] = {}
        self._graphs_read = 0
        self._began_s = time.monotonic() if began_s is None else began_s
        deadline = None
        if budget_s is not None:
            deadline = self._began_s + budget_s - min(_CLOSING_AT_MOST_S, _CLOSING_SHARE * budget_s)
        self.stopper = Stopper(deadline)
        self.repeats: deque[Repeat] = deque()
        """Second measurements to come, in the order of their first."""

    @property
    def row_s(self) -> float:
        """What a row takes, smoothed over those so far, s."""
        return self._row_s

    def run(
        self,
        measure_all: Callable[[], bool],
        *,
        busy_s: Callable[[], float],
        fleet: FleetTally | None = None,
    ) -> CampaignReport:
        """Measure until the plan or the budget ends, or a signal comes; then read the graphs that are left.

        Args:
            measure_all: Measures what is open; False where the budget ended it. May raise :class:`StopRequested`.
            busy_s: Asked at the end for the time in which models ran, s.
            fleet: What the report tells of several devices; filled while they measure.

        Raises:
            CampaignStoppedError: What ``measure_all`` or the store raised. It holds the report; all rows before are in
                the store.
        """
        stopped = StopReason.FINISHED
        failure: DippmError | None = None
        measuring_from_s = time.monotonic()
        with self.stopper:
            try:
                if not measure_all():
                    stopped = StopReason.BUDGET
            except StopRequested:
                stopped = self.stopper.reason or StopReason.INTERRUPTED
            except DippmError as exc:
                failure = exc
            self._tally.measuring_s = time.monotonic() - measuring_from_s
            try:
                if failure is None:
                    self._finish_graphs()
            except StopRequested:
                stopped = self.stopper.reason or StopReason.INTERRUPTED
            except DippmError as exc:
                failure = exc
        if failure is not None:
            report = self._report(StopReason.FAILED, busy_s=busy_s(), fleet=fleet)
            raise CampaignStoppedError(failure, report=report) from failure
        return self._report(stopped, busy_s=busy_s(), fleet=fleet)

    def is_settled(self, key: str) -> bool:
        """Whether there is a row of a key."""
        return key in self._outcomes

    def is_open(self, task: Task) -> bool:
        """Whether a first measurement is still to be made; notes those that are never made."""
        if task.key in self._outcomes:
            return False
        if self._out_of_reach.has(task):
            self._not_tried.add(task.key)
            return False
        return True

    def keep(self, task: Task, measurement: Measurement, *, repeat: int) -> None:
        """Store a row, and remember what follows from it.

        Args:
            task: What was measured.
            measurement: What came out.
            repeat: 0 for the plan's own measurement of it, 1 for the second one.
        """
        label = Label(
            recipe=task.recipe,
            configuration=task.configuration,
            # A process that died could not name the device; the key goes by the name that was planned with.
            measurement=replace(measurement, device=self._plan.device),
            repeat=self._plan.repeat + repeat,
            graph_hash=self._graph_hashes.get(task.recipe.model_key, ""),
        )
        # Another campaign on the same store may have been first.
        is_new = self._store.add(label)
        self._note(label)
        if repeat == 0 and _is_repeatable(task, measurement.outcome) and task.repeat_key not in self._outcomes:
            self.repeats.append(Repeat(task=task, position=self._tally.rows))
        if is_new:
            self._tally.add(label)
        self._follow_graph(label)
        self._tell(task.recipe, label)

    def tell_of_build(self, task: Task) -> None:
        """Let it be known that a device begins to build the model of a row."""
        self._tell(task.recipe, None)

    def queue_old_repeats(self, model: ModelPlan) -> None:
        """Queue second measurements whose first was made by an earlier run."""
        for task in model.tasks:
            outcome = self._outcomes.get(task.key)
            if outcome is not None and _is_repeatable(task, outcome) and task.repeat_key not in self._outcomes:
                self.repeats.append(Repeat(task=task, position=-REPEAT_DISTANCE))

    def is_due(self, repeat: Repeat, *, distance: int = REPEAT_DISTANCE) -> bool:
        """Whether the first measurement lies so many rows back."""
        return self._distance(repeat) >= distance

    def is_due_at_last(self, repeat: Repeat) -> bool:
        """Whether a second measurement tells of noise where the budget ends the campaign."""
        return self.is_due(repeat, distance=min(REPEAT_DISTANCE, self._tally.rows // 2))

    def count_time(self, seconds: float) -> None:
        """Learn what a row takes."""
        self._row_s += _SMOOTHING * (seconds - self._row_s)

    def has_time_for(self, rows: float) -> bool:
        """Whether so many rows, one after the other, fit into what is left of the budget."""
        return self.stopper.remaining_s() >= rows * self._row_s

    def _note(self, label: Label) -> None:
        """Remember of a stored label what later decisions and the report need."""
        key = label.key
        self._outcomes[key] = label.measurement.outcome
        if label.repeat in (0, self._plan.repeat):
            self._out_of_reach.note(label)
        if label.graph_hash:
            self._graph_hashes[label.recipe.model_key] = label.graph_hash
        if label.repeat > 0 or self._plan.repeat > 0 or is_chosen_for_repeat(key):
            self._measured_twice.append(label)

    def _distance(self, repeat: Repeat) -> int:
        return self._tally.rows - repeat.position

    def _follow_graph(self, label: Label) -> None:
        if self._graphs is None or label.graph_hash:
            return
        self._graphs.add(label.recipe)
        if self._graphs_beside:
            self._collect_graphs(wait_s=0.0)

    def _collect_graphs(self, *, wait_s: float) -> None:
        if self._graphs is None:
            return
        with self.stopper.waiting():
            results = self._graphs.advance(wait_s=wait_s)
        for result in results:
            if result.error:
                self._graph_errors[result.model_key] = result.error
                continue
            self._graph_hashes[result.model_key] = result.graph_hash
            self._store.set_graph_hash(result.model_key, result.graph_hash)
            self._graphs_read += 1

    def _finish_graphs(self) -> None:
        if self._graphs is None:
            return
        for model in self._plan.models:
            is_measured = any(task.key in self._outcomes for task in model.tasks)
            if is_measured and model.recipe.model_key not in self._graph_hashes:
                self._graphs.add(model.recipe)
        while self._graphs.pending:
            self._collect_graphs(wait_s=_GRAPH_WAIT_S)

    def _tell(self, recipe: Recipe, label: Label | None) -> None:
        if self._on_progress is None:
            return
        self._on_progress(
            Progress(
                done=self._found + self._tally.rows + len(self._not_tried),
                total=len(self._keys),
                recipe=recipe,
                label=label,
                remaining_s=self.stopper.remaining_s(),
            )
        )

    def _report(self, stopped: StopReason, *, busy_s: float, fleet: FleetTally | None) -> CampaignReport:
        tally = self._tally
        remaining = 0
        for task in self._plan.tasks():
            outcome = self._outcomes.get(task.key)
            is_to_come = outcome is None and task.key not in self._not_tried
            remaining += is_to_come
            # What was not tried, or did not end well, is not measured a second time either.
            if task.repeat_key not in self._outcomes:
                remaining += task.repeat_key is not None if is_to_come else _is_repeatable(task, outcome)
        return CampaignReport(
            device=self._plan.device,
            stopped=stopped,
            planned=len(self._keys),
            found=self._found,
            measured=tally.rows,
            repeats=tally.repeats,
            not_tried=len(self._not_tried),
            remaining=remaining,
            wall_s=time.monotonic() - self._began_s,
            measuring_s=tally.measuring_s,
            busy_s=busy_s,
            budget_s=self._budget_s,
            by_outcome=dict(tally.by_outcome),
            by_family=dict(tally.by_family),
            failures=tuple((outcome, reason, rows) for (outcome, reason), rows in tally.failures.most_common()),
            noise=find_noise_floors(self._measured_twice),
            graphs=self._graphs_read,
            graphs_failed=dict(self._graph_errors),
            graphs_pending=0 if self._graphs is None else self._graphs.pending,
            fleet=fleet,
        )


def _is_repeatable(task: Task, outcome: Outcome | None) -> bool:
    """Whether a second measurement would tell of noise: it needs figures to compare with."""
    return task.repeat_key is not None and outcome in (Outcome.OK, Outcome.NOT_FINITE)
