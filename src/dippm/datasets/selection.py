"""Labels of one device under one set of conditions: what a network without a device input is trained on."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Conditions, Mode
from dippm.datasets.store.label import Label
from dippm.errors import UsageError
from dippm.measuring.configuration import Engine
from dippm.measuring.measurement import Measurement, Outcome

__all__ = ["METRICS", "LabelSelection", "is_disturbed", "is_steady", "merge_repeats", "read_targets"]

METRICS = ("memory_mb", "latency_ms", "energy_j")
"""Figures that a network learns, in the order of the DIPPM paper's outputs."""

# Calls of a GPU that never waits for the host scatter by 0.1 to 0.6 % (data/labels/h200), others by 1 % and more.
_STEADY = 0.006
# Of 1,067 captured calls of an H100 and an H200 half scatter by less than 0.5 %, 1,049 by less than a tenth. The others
# take a quarter longer than their kernels and what lies between them, in the mean; those that scatter by 1 to 2 % do
# by 2 % (data/labels).
_DISTURBED = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelSelection:
    """Which labels make one data set.

    Args:
        conditions: Precision, mode, layout, runtime and, in training, the optimizer; without an optimizer the labels
            must be of one.
        device: Device, or a part of its name in any case; None where all labels are of one.
        source: Who measured; None where all labels come from one source.
    """

    conditions: Conditions = field(default_factory=Conditions)
    device: str | None = None
    source: str | None = None

    def choose(self, labels: Iterable[Label]) -> list[Label]:
        """The labels of this selection that ended well, run by PyTorch, in their order.

        Raises:
            UsageError: ``labels.none`` where there is none, ``labels.ambiguous`` where they are of several devices,
                sources or optimizers.
        """
        every = list(labels)
        chosen = self._of_device([label for label in every if self._holds(label)])
        if not chosen:
            raise UsageError(
                f"No label that ended well is of {self}.",
                code="labels.none",
                cure=f"The {len(every)} labels are of {_describe(every)}.",
            )
        _need_one(chosen, lambda label: label.measurement.device, what="device")
        _need_one(chosen, lambda label: label.source, what="source")
        _need_one(chosen, _optimizer, what="optimizer")
        return chosen

    def __str__(self) -> str:
        conditions = self.conditions
        words = (self.device, conditions.mode, conditions.precision, conditions.layout, conditions.runtime)
        return ", ".join(str(word) for word in (*words, conditions.optimizer, self.source) if word is not None)

    def _holds(self, label: Label) -> bool:
        wanted, conditions = self.conditions, label.configuration.conditions
        if wanted.mode is Mode.TRAINING and wanted.optimizer is None:
            wanted = replace(wanted, optimizer=conditions.optimizer)
        return (
            label.measurement.outcome is Outcome.OK
            and label.configuration.engine is Engine.TORCH
            and conditions == wanted
            and self.source in (None, label.source)
        )

    def _of_device(self, labels: list[Label]) -> list[Label]:
        if self.device is None:
            return labels
        wanted = self.device.casefold()
        same = [label for label in labels if label.measurement.device.casefold() == wanted]
        return same or [label for label in labels if wanted in label.measurement.device.casefold()]


def is_steady(measurement: Measurement) -> bool | None:
    """Whether the calls took so much the same time that the device cannot have waited for the host.

    Work that is queued up levels out what the host needs more or less. Returns None where the scatter is not known.
    """
    if not measurement.latency_ms or measurement.latency_std_ms is None:
        return None
    return measurement.latency_std_ms < _STEADY * measurement.latency_ms


def is_disturbed(measurement: Measurement) -> bool:
    """Whether captured calls, launched as a whole, scatter so much that something else held the machine."""
    return (measurement.latency_std_ms or 0.0) > _DISTURBED * (measurement.latency_ms or math.inf)


def merge_repeats(labels: Iterable[Label]) -> list[Label]:
    """One label of each recipe: the first, with the medians of all its measurements, in the order of the first ones."""
    repeats: dict[str, list[Label]] = defaultdict(list)
    for label in labels:
        repeats[label.recipe.key].append(label)
    return [_middle(group) for group in repeats.values()]


def read_targets(labels: Sequence[Label]) -> npt.NDArray[np.float64]:
    """Figures of the labels in the order of :data:`METRICS`, NaN for one that was not measured or is 0.

    Shapes:
        Result: [n_labels, 3].
    """
    figures = [[getattr(label.measurement, metric) for metric in METRICS] for label in labels]
    targets = np.array(figures, dtype=np.float64).reshape(-1, len(METRICS))
    # A counter that did not tick says 0: it is no measurement, and has no logarithm.
    targets[~(targets > 0)] = np.nan
    return targets


def _middle(labels: list[Label]) -> Label:
    first = labels[0]
    if len(labels) == 1:
        return first
    middles: dict[str, Any] = {}
    for metric in METRICS:
        known = [value for label in labels if (value := getattr(label.measurement, metric)) is not None]
        middles[metric] = statistics.median(known) if known else None
    return replace(first, measurement=replace(first.measurement, **middles))


def _optimizer(label: Label) -> str:
    optimizer = label.configuration.conditions.optimizer
    return "" if optimizer is None else optimizer.value


def _need_one(labels: list[Label], read: Callable[[Label], str], *, what: str) -> None:
    names = sorted({read(label) for label in labels})
    if len(names) > 1:
        raise UsageError(
            f"The labels are of {len(names)} {what}s: {', '.join(names)}. A data set has one.",
            code="labels.ambiguous",
            cure=f"Name the {what}.",
        )


def _describe(labels: list[Label]) -> str:
    found = Counter(
        (label.measurement.device, *(str(v) for v in (c.mode, c.precision, c.layout, c.runtime)), label.source)
        for label in labels
        for c in (label.configuration.conditions,)
    )
    return "; ".join(", ".join(words) for words, _ in found.most_common(8)) or "nothing"
