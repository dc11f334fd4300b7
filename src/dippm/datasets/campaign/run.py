"""Runs a plan: every row is in the store before the next one begins."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from dippm.datasets.campaign.graph_hashes import GraphHashes
from dippm.datasets.campaign.plan import ModelPlan, Plan, Task, is_chosen_for_repeat, series_of
from dippm.datasets.campaign.report import CampaignReport, CampaignStoppedError, Tally
from dippm.datasets.campaign.stopping import Stopper, StopReason, StopRequested
from dippm.datasets.recipes.building import RecipeSource
from dippm.datasets.statistics import find_noise_floors
from dippm.datasets.store.label import Label
from dippm.errors import DippmError, UnsupportedError
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome
from dippm.measuring.model_source import ModelSource

__all__ = ["Campaign", "LabelSink", "Measurer", "Progress"]

_REPEAT_DISTANCE = 300
_FIRST_GUESS_S = 2.0
_SMOOTHING = 0.1
_GRAPH_WAIT_S = 0.5
# A process that cannot start on the device is tried again: a driver or a neighbour may need a moment.
_START_PAUSES_S = (5.0, 15.0)
# So many failures on end, of more than one or two bad models, are the machine's fault.
_FAILED_ROWS, _FAILED_MODELS = 10, 3
# What remains of a budget when measuring stops at the latest: ending the measuring process and reporting take time.
_CLOSING_SHARE, _CLOSING_AT_MOST_S = 0.05, 3.0


class Measurer(Protocol):
    """What runs models on the device: :class:`dippm.measuring.worker.Worker`."""

    @property
    def busy_s(self) -> float:
        """Seconds that the device ran measured or warm-up work."""
        ...

    def measure(self, source: ModelSource, configurations: Sequence[Configuration]) -> Iterator[Measurement]:
        """One measurement per configuration, in order; a model stays built until another one comes."""
        ...


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
        label: The row that was just measured.
        elapsed_s: Time since the campaign began, s.
        remaining_s: Time until its budget ends, s; infinite without one.
    """

    done: int
    total: int
    label: Label
    elapsed_s: float
    remaining_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Repeat:
    task: Task
    position: int  # rows measured before the first measurement of the task


class Campaign:
    """One run over a plan; see :meth:`run`.

    Args:
        plan: What to measure.
        measurer: Measures.
        store: Keeps the labels.
        known: Labels of the device that the store holds: they are not measured again.
        graphs: Reads graphs in the background; None for no graphs.
        graphs_beside: Whether graphs are read while the device measures; else afterwards, as befits a device that
            is the host's own processor.
        budget_s: Time to end within, s; None for no limit.
        began_s: When the clock of the budget started, as :func:`time.monotonic` tells it; now when left out.
        on_progress: Called after every row.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        measurer: Measurer,
        store: LabelSink,
        known: Iterable[Label] = (),
        graphs: GraphHashes | None = None,
        graphs_beside: bool = True,
        budget_s: float | None = None,
        began_s: float | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._plan = plan
        self._measurer = measurer
        self._store = store
        self._outcomes: dict[str, Outcome] = {}
        self._graph_hashes: dict[str, str] = {}
        self._measured_twice: list[Label] = []
        self._full_from: dict[object, int] = {}  # per series the smallest batch that ran out of memory
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
        self._failed_on_end: list[str] = []  # the models of the rows that failed since one ran
        self._repeats: deque[_Repeat] = deque()
        self._row_s = _FIRST_GUESS_S
        self._graph_errors: dict[str, str] = {}
        self._graphs_read = 0
        self._began_s = time.monotonic() if began_s is None else began_s
        deadline = None
        if budget_s is not None:
            deadline = self._began_s + budget_s - min(_CLOSING_AT_MOST_S, _CLOSING_SHARE * budget_s)
        self._stopper = Stopper(deadline)

    def run(self) -> CampaignReport:
        """Measure until the plan or the budget ends, or a signal comes; then read the graphs that are left.

        Raises:
            CampaignStoppedError: A row cannot be stored, the measuring process cannot be started, or row after row
                fails (``campaign.failing``). It holds the report; all rows before are in the store.
        """
        stopped = StopReason.FINISHED
        failure: DippmError | None = None
        measuring_from_s = time.monotonic()
        with self._stopper:
            try:
                is_complete = self._measure_models()
                self._measure_repeats(is_complete=is_complete)
                if not is_complete or self._repeats:
                    stopped = StopReason.BUDGET
            except StopRequested:
                stopped = self._stopper.reason or StopReason.INTERRUPTED
            except DippmError as exc:
                failure = exc
            self._tally.measuring_s = time.monotonic() - measuring_from_s
            try:
                if failure is None:
                    self._finish_graphs()
            except StopRequested:
                stopped = self._stopper.reason or StopReason.INTERRUPTED
            except DippmError as exc:
                failure = exc
        if failure is not None:
            raise CampaignStoppedError(failure, report=self._report(StopReason.FAILED)) from failure
        return self._report(stopped)

    def _measure_models(self) -> bool:
        """Measure the first of every configuration; False where the budget ended it."""
        for model in self._plan.models:
            self._queue_old_repeats(model)
            for task in model.tasks:
                # Second measurements wait for the end of a short budget: the time for them is kept free.
                if not self._is_open(task):
                    continue
                if not self._has_time_for(1 + len(self._repeats)):
                    return False
                self._measure(task, repeat=0)
            while self._repeats and self._distance(self._repeats[0]) >= _REPEAT_DISTANCE:
                if not self._has_time_for(1):
                    return False
                self._measure(self._repeats.popleft().task, repeat=1)
        return True

    def _measure(self, task: Task, *, repeat: int) -> None:
        # One at a time: what follows depends on the outcome. The measuring process keeps the model that it has built.
        began_s = time.monotonic()
        with self._stopper.waiting():
            measurement = self._ask(task)
        self._row_s += _SMOOTHING * (time.monotonic() - began_s - self._row_s)
        self._keep(task, measurement, repeat=repeat)
        self._check_failures(task, measurement)

    def _ask(self, task: Task) -> Measurement:
        for pause_s in _START_PAUSES_S:
            with suppress(UnsupportedError):
                return self._ask_once(task)
            time.sleep(pause_s)
        return self._ask_once(task)

    def _ask_once(self, task: Task) -> Measurement:
        (measurement,) = self._measurer.measure(RecipeSource(task.recipe), [task.configuration])
        return measurement

    def _check_failures(self, task: Task, measurement: Measurement) -> None:
        """End the campaign where row after row fails: one fault of the machine must not mark a whole collection."""
        if measurement.outcome in (Outcome.OK, Outcome.NOT_FINITE):
            self._failed_on_end.clear()
        if measurement.outcome is not Outcome.FAILED:
            return
        self._failed_on_end.append(task.recipe.model_key)
        rows, models = len(self._failed_on_end), len(set(self._failed_on_end))
        if rows >= _FAILED_ROWS and models >= _FAILED_MODELS:
            raise DippmError(
                f"{rows} rows of {models} models failed and none ran in between, the last with: {measurement.message}",
                code="campaign.failing",
                cure="Mend the cause, then go on with --resume --retry failed.",
            )

    def _is_open(self, task: Task) -> bool:
        """Whether a first measurement is still to be made; notes those that are never made."""
        if task.key in self._outcomes:
            return False
        # A larger batch may come before a smaller one, which then is tried all the same.
        if task.recipe.batch > self._full_from.get(task.series, task.recipe.batch):
            self._not_tried.add(task.key)
            return False
        return True

    def _keep(self, task: Task, measurement: Measurement, *, repeat: int) -> None:
        label = Label(
            recipe=task.recipe,
            configuration=task.configuration,
            # A process that died could not name the device; the key goes by the name that was planned with.
            measurement=replace(measurement, device=self._plan.device),
            repeat=repeat,
            graph_hash=self._graph_hashes.get(task.recipe.model_key, ""),
        )
        # Another campaign on the same store may have been first.
        is_new = self._store.add(label)
        self._note(label)
        if repeat == 0 and _is_repeatable(task, measurement.outcome):
            self._repeats.append(_Repeat(task=task, position=self._tally.rows))
        if is_new:
            self._tally.add(label)
        self._follow_graph(label)
        if self._on_progress is not None:
            self._on_progress(self._progress(label))

    def _note(self, label: Label) -> None:
        """Remember of a stored label what later decisions and the report need."""
        key = label.key
        self._outcomes[key] = label.measurement.outcome
        if label.measurement.outcome is Outcome.OUT_OF_MEMORY and label.repeat == 0:
            series, batch = series_of(label.recipe, label.configuration), label.recipe.batch
            self._full_from[series] = min(batch, self._full_from.get(series, batch))
        if label.graph_hash:
            self._graph_hashes[label.recipe.model_key] = label.graph_hash
        if label.repeat > 0 or is_chosen_for_repeat(key):
            self._measured_twice.append(label)

    def _queue_old_repeats(self, model: ModelPlan) -> None:
        """Queue second measurements whose first was made by an earlier run."""
        for task in model.tasks:
            outcome = self._outcomes.get(task.key)
            if outcome is not None and _is_repeatable(task, outcome) and task.repeat_key not in self._outcomes:
                self._repeats.append(_Repeat(task=task, position=-_REPEAT_DISTANCE))

    def _measure_repeats(self, *, is_complete: bool) -> None:
        """Measure second times at the end; where the budget ended the campaign, those that are far enough apart."""
        for repeat in list(self._repeats):
            is_far = self._distance(repeat) >= min(_REPEAT_DISTANCE, self._tally.rows // 2)
            if not is_complete and not is_far:
                continue
            if not self._has_time_for(1):
                return
            self._repeats.remove(repeat)
            self._measure(repeat.task, repeat=1)

    def _distance(self, repeat: _Repeat) -> int:
        return self._tally.rows - repeat.position

    def _has_time_for(self, rows: int) -> bool:
        return self._stopper.remaining_s() >= rows * self._row_s

    def _follow_graph(self, label: Label) -> None:
        if self._graphs is None or label.graph_hash:
            return
        self._graphs.add(label.recipe)
        if self._graphs_beside:
            self._collect_graphs(wait_s=0.0)

    def _collect_graphs(self, *, wait_s: float) -> None:
        if self._graphs is None:
            return
        with self._stopper.waiting():
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

    def _progress(self, label: Label) -> Progress:
        return Progress(
            done=self._found + self._tally.rows + len(self._not_tried),
            total=len(self._keys),
            label=label,
            elapsed_s=time.monotonic() - self._began_s,
            remaining_s=self._stopper.remaining_s(),
        )

    def _report(self, stopped: StopReason) -> CampaignReport:
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
            busy_s=self._measurer.busy_s,
            budget_s=self._budget_s,
            by_outcome=dict(tally.by_outcome),
            by_family=dict(tally.by_family),
            failures=tuple((outcome, reason, rows) for (outcome, reason), rows in tally.failures.most_common()),
            noise=find_noise_floors(self._measured_twice),
            graphs=self._graphs_read,
            graphs_failed=dict(self._graph_errors),
            graphs_pending=0 if self._graphs is None else self._graphs.pending,
        )


def _is_repeatable(task: Task, outcome: Outcome | None) -> bool:
    """Whether a second measurement would tell of noise: it needs figures to compare with."""
    return task.repeat_key is not None and outcome in (Outcome.OK, Outcome.NOT_FINITE)
