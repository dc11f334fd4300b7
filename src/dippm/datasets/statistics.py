"""What a set of labels holds: counts, outcomes, distributions, and how far two measurements of one thing differ."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dippm.datasets.store.label import Label
from dippm.measuring.measurement import Outcome

__all__ = [
    "METRICS",
    "Distribution",
    "FailureGroup",
    "LabelGroup",
    "LabelStatistics",
    "NoiseFloor",
    "find_noise_floors",
    "summarize",
]

METRICS = ("latency_ms", "energy_j", "memory_mb")
"""Figures of a measurement that are summarised."""

_QUANTILES = (
    ("smallest", 0.0), ("q05", 0.05), ("q25", 0.25), ("median", 0.5), ("q75", 0.75), ("q95", 0.95), ("largest", 1.0)
)  # fmt: skip
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """Quantiles of one figure over the rows that have it.

    Args:
        count: Rows that have it.
        smallest: Smallest value; this and the others in the figure's unit.
        q05: 5 % of the values are smaller.
        q25: Lower quartile.
        median: Median.
        q75: Upper quartile.
        q95: 5 % of the values are larger.
        largest: Largest value.
    """

    count: int
    smallest: float
    q05: float
    q25: float
    median: float
    q75: float
    q95: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution | None:
        """Quantiles of values, None where there are none."""
        if not values:
            return None
        found = np.quantile(values, [at for _, at in _QUANTILES]).tolist()
        return cls(count=len(values), **{name: value for (name, _), value in zip(_QUANTILES, found, strict=True)})


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelGroup:
    """Labels of one family on one device in one mode and precision.

    Args:
        device: Device.
        mode: ``"inference"`` or ``"training"``.
        precision: Precision.
        family: Family of models.
        rows: Labels, second measurements among them.
        models: Different models, whatever their batch.
        outcomes: Rows by outcome, those that occur.
        latency_ms: Of the rows that ended well, as the next two; None where none has the figure.
        energy_j: See above.
        memory_mb: See above.
    """

    device: str
    mode: str
    precision: str
    family: str
    rows: int
    models: int
    outcomes: Mapping[str, int]
    latency_ms: Distribution | None
    energy_j: Distribution | None
    memory_mb: Distribution | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureGroup:
    """Rows that did not end well, for one reason.

    Args:
        outcome: How they ended.
        message: Why, with ``#`` for every number.
        rows: How many.
        example: Model of one of them: ``collection/family/key``.
    """

    outcome: str
    message: str
    rows: int
    example: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NoiseFloor:
    """How far two measurements of the same configuration differ.

    No predictor can be expected to have a smaller error than this.

    Args:
        device: Device.
        metric: ``"latency_ms"``, ``"energy_j"`` or ``"memory_mb"``.
        pairs: Configurations measured twice, both times with this figure.
        mean_difference_percent: Mean of the absolute difference of two measurements over their mean, %.
        largest_difference_percent: The largest such difference, %.
    """

    device: str
    metric: str
    pairs: int
    mean_difference_percent: float
    largest_difference_percent: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelStatistics:
    """Summary of a set of labels.

    Args:
        rows: Labels.
        models: Different models, whatever their batch.
        graphs: Different graph hashes.
        outcomes: Rows by outcome.
        groups: By device, mode, precision and family, in this order.
        failures: Reasons why rows did not end well, the most frequent first.
        noise: Noise floors, by device and metric; only where something was measured twice.
    """

    rows: int
    models: int
    graphs: int
    outcomes: Mapping[str, int]
    groups: tuple[LabelGroup, ...]
    failures: tuple[FailureGroup, ...]
    noise: tuple[NoiseFloor, ...]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return asdict(self)


class _Gathering:
    """Figures of one group while labels stream by."""

    def __init__(self) -> None:
        self.rows = 0
        self.models: set[str] = set()
        self.outcomes: Counter[str] = Counter()
        self.values: dict[str, list[float]] = {metric: [] for metric in METRICS}

    def add(self, label: Label, model_key: str) -> None:
        measurement = label.measurement
        self.rows += 1
        self.models.add(model_key)
        self.outcomes[measurement.outcome.value] += 1
        if measurement.outcome is Outcome.OK:
            for metric in METRICS:
                value = getattr(measurement, metric)
                if value is not None:
                    self.values[metric].append(value)


def summarize(labels: Iterable[Label]) -> LabelStatistics:
    """Summarise labels in one pass; only figures and hashes are kept in memory."""
    gathered: dict[tuple[str, str, str, str], _Gathering] = defaultdict(_Gathering)
    failures: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    graphs: set[str] = set()
    repeats = _Repeats()
    for label in labels:
        conditions = label.configuration.conditions
        group = (label.measurement.device, conditions.mode.value, conditions.precision.value, label.recipe.family)
        gathered[group].add(label, label.recipe.model_key)
        if label.graph_hash:
            graphs.add(label.graph_hash)
        if label.measurement.outcome is not Outcome.OK:
            reason = (label.measurement.outcome.value, _NUMBER.sub("#", label.measurement.message).strip())
            failures[reason] += 1
            examples.setdefault(reason, f"{label.recipe.collection}/{label.recipe.family}/{label.recipe.key}")
        repeats.add(label)
    outcomes: Counter[str] = sum((entry.outcomes for entry in gathered.values()), Counter())
    return LabelStatistics(
        rows=sum(entry.rows for entry in gathered.values()),
        models=len(set().union(*(entry.models for entry in gathered.values()))),
        graphs=len(graphs),
        outcomes=dict(sorted(outcomes.items())),
        groups=tuple(
            LabelGroup(
                device=device,
                mode=mode,
                precision=precision,
                family=family,
                rows=entry.rows,
                models=len(entry.models),
                outcomes=dict(sorted(entry.outcomes.items())),
                latency_ms=Distribution.of(entry.values["latency_ms"]),
                energy_j=Distribution.of(entry.values["energy_j"]),
                memory_mb=Distribution.of(entry.values["memory_mb"]),
            )
            for (device, mode, precision, family), entry in sorted(gathered.items())
        ),
        failures=tuple(
            FailureGroup(outcome=outcome, message=message, rows=rows, example=examples[outcome, message])
            for (outcome, message), rows in sorted(failures.items(), key=lambda item: (-item[1], item[0]))
        ),
        noise=repeats.floors(),
    )


def find_noise_floors(labels: Iterable[Label]) -> tuple[NoiseFloor, ...]:
    """The noise floors alone, from labels of which some are second measurements (``repeat`` 1)."""
    repeats = _Repeats()
    for label in labels:
        repeats.add(label)
    return repeats.floors()


class _Repeats:
    """First and second measurements, brought together whichever comes first."""

    def __init__(self) -> None:
        self._figures: tuple[dict[str, tuple[float | None, ...]], ...] = ({}, {})
        self._devices: dict[str, str] = {}

    def add(self, label: Label) -> None:
        measurement = label.measurement
        if label.repeat > 1 or measurement.outcome is not Outcome.OK:
            return
        key = label.key if label.repeat == 0 else replace(label, repeat=0).key
        self._figures[label.repeat][key] = tuple(getattr(measurement, metric) for metric in METRICS)
        self._devices[key] = measurement.device

    def floors(self) -> tuple[NoiseFloor, ...]:
        differences: dict[tuple[str, int], list[float]] = defaultdict(list)
        first, second = self._figures
        for key, again in second.items():
            for position, (one, two) in enumerate(zip(first.get(key, ()), again, strict=False)):
                if one is not None and two is not None and one + two > 0:
                    differences[self._devices[key], position].append(200.0 * abs(one - two) / (one + two))
        return tuple(
            NoiseFloor(
                device=device,
                metric=METRICS[position],
                pairs=len(values),
                mean_difference_percent=float(np.mean(values)),
                largest_difference_percent=max(values),
            )
            for (device, position), values in sorted(differences.items())
        )
