"""Runs a plan on one device: every row is in the store before the next one begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from dippm.datasets.campaign.graph_hashes import GraphHashes
from dippm.datasets.campaign.ledger import FailureStreak, LabelSink, Ledger, Progress
from dippm.datasets.campaign.plan import Plan, Task
from dippm.datasets.campaign.report import CampaignReport
from dippm.datasets.recipes.building import RecipeSource
from dippm.datasets.store.label import Label
from dippm.errors import UnsupportedError
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement
from dippm.measuring.model_source import ModelSource

__all__ = ["Campaign", "LabelSink", "Measurer", "Progress"]

# A process that cannot start on the device is tried again: a driver or a neighbour may need a moment.
_START_PAUSES_S = (5.0, 15.0)


class Measurer(Protocol):
    """What runs models on the device: :class:`dippm.measuring.worker.Worker`."""

    @property
    def busy_s(self) -> float:
        """Seconds that the device ran measured or warm-up work."""
        ...

    def measure(self, source: ModelSource, configurations: Sequence[Configuration]) -> Iterator[Measurement]:
        """One measurement per configuration, in order; a model stays built until another one comes."""
        ...


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
        on_progress: Called after every row, and when a device begins to build a model.
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
        self._failures = FailureStreak()
        self._built = ""  # key of the model that the measurer was asked for last
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

    def run(self) -> CampaignReport:
        """Measure until the plan or the budget ends, or a signal comes; then read the graphs that are left.

        Raises:
            CampaignStoppedError: A row cannot be stored, the measuring process cannot be started, or row after row
                fails (``campaign.failing``). It holds the report; all rows before are in the store.
        """
        return self._ledger.run(self._measure_all, busy_s=lambda: self._measurer.busy_s)

    def _measure_all(self) -> bool:
        is_complete = self._measure_models()
        self._measure_repeats(is_complete=is_complete)
        return is_complete and not self._ledger.repeats

    def _measure_models(self) -> bool:
        """Measure the first of every configuration; False where the budget ended it."""
        ledger = self._ledger
        for model in self._plan.models:
            ledger.queue_old_repeats(model)
            for task in model.tasks:
                # Second measurements wait for the end of a short budget: the time for them is kept free.
                if not ledger.is_open(task):
                    continue
                if not ledger.has_time_for(1 + len(ledger.repeats)):
                    return False
                self._measure(task, repeat=0)
            while ledger.repeats and ledger.is_due(ledger.repeats[0]):
                if not ledger.has_time_for(1):
                    return False
                self._measure(ledger.repeats.popleft().task, repeat=1)
        return True

    def _measure_repeats(self, *, is_complete: bool) -> None:
        """Measure second times at the end; where the budget ended the campaign, those that are far enough apart."""
        ledger = self._ledger
        for repeat in list(ledger.repeats):
            if not is_complete and not ledger.is_due_at_last(repeat):
                continue
            if not ledger.has_time_for(1):
                return
            ledger.repeats.remove(repeat)
            self._measure(repeat.task, repeat=1)

    def _measure(self, task: Task, *, repeat: int) -> None:
        # One at a time: what follows depends on the outcome. The measuring process keeps the model that it has built.
        if task.recipe.model_key != self._built:
            self._built = task.recipe.model_key
            self._ledger.tell_of_build(task)
        began_s = time.monotonic()
        with self._ledger.stopper.waiting():
            measurement = self._ask(task)
        self._ledger.count_time(time.monotonic() - began_s)
        self._ledger.keep(task, measurement, repeat=repeat)
        self._failures.add(task, measurement)
        if self._failures.is_fault:
            raise self._failures.make_error(measurement.message)

    def _ask(self, task: Task) -> Measurement:
        for pause_s in _START_PAUSES_S:
            with suppress(UnsupportedError):
                return self._ask_once(task)
            time.sleep(pause_s)
        return self._ask_once(task)

    def _ask_once(self, task: Task) -> Measurement:
        (measurement,) = self._measurer.measure(RecipeSource(task.recipe), [task.configuration])
        return measurement
