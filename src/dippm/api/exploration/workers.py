"""Trials predicted in this process or in several, with the same outcomes in the same order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from dippm.api.exploration.choices import Choices
from dippm.api.exploration.space import Space, load_space
from dippm.api.exploration.trials import Outcome, Terms, evaluate
from dippm.errors import DippmError, UsageError
from dippm.processes.fresh_spawn import FreshSpawnContext

__all__ = ["Workers"]


class Workers:
    """Predicts points of a space.

    Args:
        space: The space; with several jobs each process reads it from its file.
        terms: What to predict for.
        jobs: Processes; 1 is this one.

    Raises:
        UsageError: ``explore.jobs``.
    """

    def __init__(self, space: Space, terms: Terms, *, jobs: int) -> None:
        if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
            raise UsageError(f"The jobs must be 1 or more. Got {jobs!r} instead.", code="explore.jobs")
        if jobs > 1 and space.path is None:
            raise UsageError(
                "Several jobs read the space each for itself, from its file. This one was made in Python.",
                code="explore.jobs",
                cure="Write it to a file, or leave the jobs at 1.",
            )
        self._space, self._terms, self._jobs = space, terms, jobs
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def predict(self, points: Sequence[Choices], keep: Callable[[int, Outcome], None]) -> None:
        """Predict points.

        Args:
            points: What was chosen for each.
            keep: Called with the place of a point and its outcome, in any order, as soon as it is known.

        Raises:
            UsageError: ``explore.space_changed`` where another process finds another space than this one.
            DippmError: The space cannot be read there, or a package is missing.
        """
        if self._jobs == 1 or self._space.path is None:
            for at, point in enumerate(points):
                keep(at, evaluate(self._space, point, self._terms))
            return
        lost = self._spread(points, keep)
        # Whose fault the end of a process is shows when each point that was lost has one to itself.
        for at in lost:
            if self._spread([points[at]], lambda _, outcome, at=at: keep(at, outcome)):  # type: ignore[misc]
                keep(
                    at, Outcome(error_code="worker.died", error="The process that built or predicted this model ended.")
                )

    def _spread(self, points: Sequence[Choices], keep: Callable[[int, Outcome], None]) -> list[int]:
        """Predict over the processes; returns places of points that were lost with one."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self._jobs, mp_context=FreshSpawnContext())
        answers: list[Future[Outcome | _Refusal] | None] = []
        for point in points:
            try:
                answers.append(
                    self._pool.submit(_predict, str(self._space.path), self._space.sha256, point, self._terms)
                )
            except BrokenProcessPool:
                answers.append(None)
        lost = []
        for at, answer in enumerate(answers):
            try:
                outcome = None if answer is None else answer.result()
            except BrokenProcessPool:
                outcome = None
            if isinstance(outcome, _Refusal):
                raise outcome.to_error()
            if outcome is None:
                lost.append(at)
            else:
                keep(at, outcome)
        if lost:
            self._stop()
        return lost

    def _stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


@dataclass(frozen=True, slots=True)
class _Refusal:
    """An error that ends the exploration, on its way from another process: pickle loses what errors are made of."""

    kind: type[DippmError]
    text: str
    content: dict[str, object]

    def to_error(self) -> DippmError:
        """The error again."""
        error = self.kind.__new__(self.kind, self.text)
        error.__dict__.update(self.content)
        return error


def _predict(path: str, sha256: str, point: Choices, terms: Terms) -> Outcome | _Refusal:
    """Predict a point in a process of its own."""
    try:
        return evaluate(_load(path, sha256), point, terms)
    except DippmError as exc:
        return _Refusal(type(exc), str(exc), vars(exc))


@cache
def _load(path: str, sha256: str) -> Space:
    return load_space(Path(path), sha256=sha256)
