"""Thousands of models at many batches on many devices, into one table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Unpack

from dippm.api.arguments import Batches, Devices
from dippm.api.question import Options, Question, spelled_out
from dippm.api.sweep_models import list_models
from dippm.api.sweep_parts import SweepParts
from dippm.api.sweep_plan import SweepPlan
from dippm.api.sweep_pool import SweepPool
from dippm.api.sweep_report import SweepProgress, SweepReport, SweepTally, select_errors
from dippm.api.sweep_rows import SweepTask, frugal_pyarrow, need_pyarrow, predict_task
from dippm.api.sweep_settings import SweepSettings
from dippm.errors import UsageError, quote
from dippm.processes.machine_share import usable_processors

if TYPE_CHECKING:
    import pyarrow

__all__ = ["OpenRunner", "TaskRunner", "sweep"]

_LIMIT_S = 600.0


class TaskRunner(Protocol):
    """Whatever works through the tasks of a sweep."""

    @property
    def workers(self) -> int:
        """Processes that predict; 0 where this one does."""

    def run(self, tasks: Iterable[SweepTask]) -> Iterator[tuple[int, pyarrow.Table]]:
        """Each task's index and rows, in any order, a task maybe more than once."""


class OpenRunner(Protocol):
    """Starts a :class:`TaskRunner` elsewhere than in processes of this machine."""

    def __call__(
        self, settings: SweepSettings, *, jobs: int | None, limit_s: float
    ) -> AbstractContextManager[TaskRunner]:
        """Make one for these settings; nothing is started before it is entered.

        Args:
            settings: What each model is asked.
            jobs: Processes that predict; None for as many as there is room for.
            limit_s: Time for one task, s.
        """


@spelled_out
def sweep(
    models: str | PathLike[str] | Iterable[str | PathLike[str]],
    *,
    out: str | PathLike[str],
    batch: Batches = 1,
    device: Devices | None = None,
    mig_policy: str = "safe",
    predictor: str | PathLike[str] | None = None,
    jobs: int | None = None,
    open_runner: OpenRunner | None = None,
    model_limit_s: float = _LIMIT_S,
    resume: bool = False,
    on_progress: Callable[[SweepProgress], None] | None = None,
    **options: Unpack[Options],
) -> SweepReport:
    """Predict many models and write a row for each model, batch and device.

    A model that cannot be read or predicted is a row with its error, whatever it does to the process that reads it; so
    is a single batch or device that is refused. What is done lies in parts beside the table until all is done, so that
    a sweep can be cut at any moment and resumed. The rows are the same however the work was divided.

    Args:
        models: Paths and names as :func:`dippm.load` takes them; folders, for the model files in and below them;
            ``@FILE`` for the lines of a file.
        out: The table: ``NAME.parquet`` or ``NAME.csv``.
        batch: As of :func:`dippm.predict`; so are ``device``, ``mig_policy``, ``predictor`` and all options.
        device: See above.
        mig_policy: See above.
        predictor: See above.
        jobs: Processes that predict, those of the cluster where one is named; one for each core that may be used when
            left out. 1 works in this process, which a hostile file then takes down, and where no limit of time holds.
        open_runner: Who does the work: a :class:`dippm.cluster.sweep.RaySweep` for the machines of a cluster, which
            find the models at the same paths. None for this machine.
        model_limit_s: Time for one model, s; one that takes longer is a row with its error.
        resume: Go on with what an earlier run of the same sweep left; without one, begin. Where that run has finished
            its ``.parquet`` table there is nothing to do: the table stays as it is, and the report is of it.
        on_progress: Called after each model, or part of one.
        **options: ``input``, ``precision``, ``mode`` and the others of :func:`dippm.predict`, the same for all models.

    Returns:
        What came of it; the rows are in the table.

    Raises:
        UsageError: An option is wrong; ``sweep.models``, ``sweep.list``, ``sweep.out``, ``sweep.exists``,
            ``sweep.unfinished``, ``sweep.changed``, ``sweep.running``, ``jobs.invalid``, ``limit.invalid``,
            ``cluster.unreachable``.
        UnsupportedError: A device or runtime is not supported.
        MissingExtraError: pyarrow, or for a cluster Ray, is not installed.
        DippmError: ``sweep.unwritable``, ``sweep.damaged``, ``worker.not_started``.
    """
    started_s = time.monotonic()
    question = Question(**options)
    need_pyarrow()
    settings = SweepSettings.of(question, batch=batch, device=device, mig_policy=mig_policy, predictor=predictor)
    opened = _open_runner(settings, jobs=jobs, open_runner=open_runner, limit_s=model_limit_s)
    plan = SweepPlan.of(list_models(models), settings)
    parts = SweepParts(Path(fspath(out)), plan)
    tally = SweepTally()
    resumed, workers = len(plan.models), 0
    with frugal_pyarrow():
        if resume and parts.is_finished():
            parts.read_table(tally.add)
        else:
            with parts.opened(resume=resume):
                missing = parts.missing()
                resumed -= len({plan.model_of(task) for part in missing for task in plan.tasks_of(part)})
                if missing:
                    with opened as runner:
                        workers = runner.workers
                        _Collection(plan, parts, missing, resumed, on_progress).collect(runner)
                parts.merge(tally.add)
    return SweepReport(
        out=str(parts.out),
        models=len(plan.models),
        rows=tally.rows,
        errors=tally.errors,
        resumed_models=resumed,
        workers=workers,
        seconds=time.monotonic() - started_s,
        failures=tally.failures,
    )


class _Collection:
    """Gathers rows as they come, and writes a part as soon as all of its tasks are there."""

    def __init__(
        self,
        plan: SweepPlan,
        parts: SweepParts,
        missing: list[int],
        resumed: int,
        on_progress: Callable[[SweepProgress], None] | None,
    ) -> None:
        self._plan = plan
        self._parts = parts
        self._missing = missing
        self._resumed = resumed
        self._report = on_progress
        self._gathered: dict[int, dict[int, pyarrow.Table]] = {}
        self._done = self._rows = self._errors = 0

    def collect(self, runner: TaskRunner) -> None:
        """Have all missing parts made."""
        started_s = time.monotonic()
        self._gathered = {part: {} for part in self._missing}
        tasks = (self._plan.task(index) for part in self._missing for index in self._plan.tasks_of(part))
        for index, rows in runner.run(tasks):
            part = self._plan.part_of(index)
            gathered = self._gathered.get(part)
            # A cluster that lost a machine may do a task again.
            if gathered is None or index in gathered:
                continue
            gathered[index] = rows
            self._done += 1
            self._rows += len(rows)
            self._errors += len(select_errors(rows))
            of_part = self._plan.tasks_of(part)
            if len(gathered) == len(of_part):
                self._parts.write(part, [gathered[each] for each in of_part])
                del self._gathered[part]
            if self._report is not None:
                self._report(self._progress(time.monotonic() - started_s))

    def _progress(self, seconds: float) -> SweepProgress:
        total = len(self._plan.models)
        return SweepProgress(
            models=min(total, self._resumed + self._plan.model_of(self._done)),
            total=total,
            rows=self._rows,
            errors=self._errors,
            rows_per_s=self._rows / seconds if seconds > 0 else 0.0,
        )


class _ThisProcess:
    """Works through the tasks here."""

    workers = 0

    def __init__(self, settings: SweepSettings) -> None:
        self._settings = settings

    def run(self, tasks: Iterable[SweepTask]) -> Iterator[tuple[int, pyarrow.Table]]:
        """Each task's index and rows, in order."""
        for task in tasks:
            yield task.index, predict_task(task, self._settings)


def _open_runner(
    settings: SweepSettings, *, jobs: int | None, open_runner: OpenRunner | None, limit_s: float
) -> AbstractContextManager[TaskRunner]:
    """Choose who does the work; nothing is started yet.

    Raises:
        UsageError: ``jobs.invalid``, ``limit.invalid``.
    """
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise UsageError(f"The number of processes must be 1 or more. Got {quote(jobs)} instead.", code="jobs.invalid")
    if not limit_s > 0:
        raise UsageError(f"The limit of time must be positive. Got {quote(limit_s)} s instead.", code="limit.invalid")
    if open_runner is not None:
        return open_runner(settings, jobs=jobs, limit_s=limit_s)
    if jobs == 1:
        return nullcontext(_ThisProcess(settings))
    return SweepPool(settings, jobs=jobs or usable_processors(), limit_s=limit_s)
