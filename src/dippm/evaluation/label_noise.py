"""What a data set holds, and how far its labels differ from other measurements of the same configurations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from dippm.datasets.disturbances import take_out_disturbances
from dippm.datasets.graph_samples import SampleTable
from dippm.datasets.selection import METRICS, merge_repeats, read_targets
from dippm.datasets.store.label import Label
from dippm.evaluation.dippm_report import DatasetSummary, SourceNoise
from dippm.measuring.configuration import Engine
from dippm.measuring.measurement import Outcome

__all__ = ["find_noise", "summarize_dataset"]

_SECOND = "second measurement"
_EVENED = "second measurement, the machine's state taken out"


def find_noise(chosen: Sequence[Label], every: Iterable[Label]) -> tuple[SourceNoise, ...]:
    """Compare labels with their second measurements, and with other sources on the same device and conditions.

    Second measurements are compared as they were taken and, where that is something else, after
    :func:`~dippm.datasets.disturbances.take_out_disturbances`; other sources after it.

    A constant factor between two measurements, such as a faster release of the framework, is taken out: what stays
    cannot be predicted from a model alone.

    Args:
        chosen: Labels of one selection, second measurements among them.
        every: All labels that there are.
    """
    evened = take_out_disturbances(chosen)
    found = _compare_repeats(chosen, name=_SECOND)
    if evened != list(chosen):
        found += _compare_repeats(evened, name=_EVENED)
    first = [label for label in evened if label.repeat == 0]
    example = first[0] if first else None
    others: dict[str, list[Label]] = defaultdict(list)
    for label in every:
        if (
            example is not None
            and label.source != example.source
            and label.measurement.outcome is Outcome.OK
            and label.measurement.device == example.measurement.device
            and label.configuration.engine is Engine.TORCH
            and label.configuration.conditions == example.configuration.conditions
        ):
            others[label.source].append(label)
    for source, labels in sorted(others.items()):
        found += _compare(first, merge_repeats(take_out_disturbances(labels)), name=source)
    return tuple(found)


def _compare_repeats(labels: Sequence[Label], *, name: str) -> list[SourceNoise]:
    first, second = ([label for label in labels if label.repeat == repeat] for repeat in (0, 1))
    return _compare(first, second, name=name)


def _compare(first: Sequence[Label], second: Sequence[Label], *, name: str) -> list[SourceNoise]:
    again = {label.recipe.key: label for label in second}
    pairs = [(label, again[label.recipe.key]) for label in first if label.recipe.key in again]
    one = read_targets([label for label, _ in pairs])
    two = read_targets([label for _, label in pairs])
    found = []
    for column, metric in enumerate(METRICS):
        log_ratio = np.log(two[:, column] / one[:, column])
        log_ratio = log_ratio[np.isfinite(log_ratio)]
        if not log_ratio.size:
            continue
        shift = float(np.median(log_ratio))
        found.append(
            SourceNoise(
                other=name,
                metric=metric,
                pairs=len(log_ratio),
                shift_percent=100.0 * float(np.expm1(shift)),
                difference_percent=100.0 * float(np.abs(np.expm1(log_ratio - shift)).mean()),
            )
        )
    return found


def summarize_dataset(samples: SampleTable, noise: Sequence[SourceNoise]) -> DatasetSummary:
    """Describe samples of one selection."""
    first = samples.labels[0]
    conditions = first.configuration.conditions
    words = (conditions.mode, conditions.precision, conditions.layout, conditions.runtime, conditions.optimizer)
    counts = samples.node_counts
    measured = np.flatnonzero(np.isfinite(samples.targets).any(axis=0))
    return DatasetSummary(
        device=first.measurement.device,
        conditions=", ".join(word.value for word in words if word is not None),
        mode=conditions.mode.value,
        precision=conditions.precision.value,
        source=first.source,
        software=tuple(sorted({label.measurement.software.framework for label in samples.labels} - {""})),
        metrics=tuple(METRICS[column] for column in measured),
        rows=len(samples),
        models=len({label.graph_hash for label in samples.labels}),
        families=len(set(samples.families.tolist())),
        operators=(int(counts.min()), int(np.median(counts)), int(counts.max())),
        unread=len(samples.unread),
        data_hash=samples.key,
        noise=tuple(noise),
    )
