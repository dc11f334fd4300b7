"""What an exploration weighs against each other, and what it must keep to."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dippm.errors import UsageError
from dippm.predictors.prediction import round_figures

__all__ = ["METRICS", "TITLES", "UNCERTAIN", "Limit", "Objective", "parse_limits", "parse_objectives", "round_metric"]

METRICS = ("latency_ms", "step_time_ms", "energy_j", "memory_mb", "params", "macs", "score")
"""What can be an objective or be limited."""
UNCERTAIN = ("latency_ms", "step_time_ms", "energy_j", "memory_mb")
"""Those that are predicted, with an interval; the others are known."""
TITLES = {
    "latency_ms": "latency, ms", "step_time_ms": "step, ms", "energy_j": "energy, J", "memory_mb": "memory, MiB",
    "params": "parameters", "macs": "MACs", "score": "score",
}  # fmt: skip
"""What axes and columns say."""

_SHORT = {
    "latency": "latency_ms", "step_time": "step_time_ms", "energy": "energy_j", "memory": "memory_mb",
    "parameters": "params",
}  # fmt: skip
_LIMIT = re.compile(r"\s*(\w+)\s*(<=|>=|=)\s*(\S+)\s*")
_SCORE_DIGITS = 6
# Below it a limit and a value are compared as differences rather than as shares.
_SMALL = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """A metric to make small or large.

    Args:
        metric: One of :data:`METRICS`.
        is_maximised: Whether more is better.
    """

    metric: str
    is_maximised: bool = False

    def __str__(self) -> str:
        return f"{self.metric}:{'max' if self.is_maximised else 'min'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """A bound that a model must keep to, even at the bad end of its interval.

    Args:
        metric: One of :data:`METRICS`.
        bound: The bound.
        is_least: Whether it is the least allowed rather than the most.
    """

    metric: str
    bound: float
    is_least: bool = False

    def excess(self, ends: tuple[float, float]) -> float:
        """How far the bad end of an interval is beyond the bound, as a share of it; 0 or less where it is kept."""
        low, high = ends
        beyond = self.bound - low if self.is_least else high - self.bound
        return beyond / max(abs(self.bound), _SMALL)

    def __str__(self) -> str:
        return f"{self.metric}{'>=' if self.is_least else '<='}{self.bound:g}"


def round_metric(metric: str, value: float) -> float:
    """A value as it is told: of what is predicted the digits that mean something, of a score six, counts whole."""
    if metric in UNCERTAIN:
        return round_figures(value)
    return value if isinstance(value, int) else round_figures(value, digits=_SCORE_DIGITS)


def parse_objectives(given: str | Iterable[str], *, is_training: bool, has_score: bool) -> tuple[Objective, ...]:
    """Read objectives as users write them.

    Args:
        given: ``"latency,memory,params:max"`` or a list of such; ``:min``, as when left out, or ``:max``. ``latency``,
            ``energy``, ``memory`` and ``step_time`` are short for the names with units.
        is_training: Whether training steps are predicted, the only ones that have a step time.
        has_score: Whether the space has a score.

    Raises:
        UsageError: ``explore.objective``.
    """
    written = given.split(",") if isinstance(given, str) else list(given)
    objectives: list[Objective] = []
    for text in (each.strip() for each in written):
        name, _, direction = text.partition(":")
        if direction not in {"", "min", "max"}:
            raise UsageError(
                f"An objective ends in :min or :max, or in neither. Got '{text}' instead.", code="explore.objective"
            )
        objective = Objective(
            metric=_metric(name, is_training=is_training, has_score=has_score), is_maximised=direction == "max"
        )
        if objective.metric in {each.metric for each in objectives}:
            raise UsageError(f"The objective {objective.metric} is given twice.", code="explore.objective")
        objectives.append(objective)
    if not objectives:
        raise UsageError("Give at least one objective, such as latency.", code="explore.objective")
    return tuple(objectives)


def parse_limits(
    given: Mapping[str, float] | Sequence[str], *, is_training: bool, has_score: bool
) -> tuple[Limit, ...]:
    """Read limits as users write them.

    Args:
        given: ``["memory_mb=4864", "params>=1e6"]``, where ``=`` and ``<=`` are the most allowed, or a mapping of
            metrics to the most allowed.
        is_training: As in :func:`parse_objectives`.
        has_score: As in :func:`parse_objectives`.

    Raises:
        UsageError: ``explore.limit``, ``explore.objective``.
    """
    texts = [f"{name}={bound}" for name, bound in given.items()] if isinstance(given, Mapping) else list(given)
    limits = []
    for text in texts:
        found = _LIMIT.fullmatch(text)
        bound = math.nan
        if found is not None:
            try:
                bound = float(found[3])
            except ValueError:
                bound = math.nan
        if found is None or not math.isfinite(bound):
            raise UsageError(
                f"A limit must be written as NAME=NUMBER, or NAME>=NUMBER for the least. Got '{text}' instead.",
                code="explore.limit",
            )
        metric = _metric(found[1], is_training=is_training, has_score=has_score)
        limits.append(Limit(metric=metric, bound=bound, is_least=found[2] == ">="))
    return tuple(limits)


def _metric(name: str, *, is_training: bool, has_score: bool) -> str:
    metric = _SHORT.get(name, name)
    if metric not in METRICS:
        raise UsageError(
            f"An objective or limit must be of one of {', '.join(METRICS)}. Got '{name}' instead.",
            code="explore.objective",
        )
    if metric == "step_time_ms" and not is_training:
        raise UsageError("Only training has a step time.", code="explore.objective", cure="Give the mode training.")
    if metric == "score" and not has_score:
        raise UsageError(
            "This space has no score.", code="explore.objective", cure="Add a function score(choices, prediction)."
        )
    return metric
