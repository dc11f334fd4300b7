"""What the state of machine and process added to labels, and has nothing to do with the model, taken out."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import numpy as np
import numpy.typing as npt

from dippm.datasets.store.label import Label

__all__ = ["even_out_contexts", "even_out_pace", "take_out_disturbances"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Rows before and after one that tell of its moment, a second each way where a row takes a quarter of one. Of 3, 5, 8,
# 12 and 20 the fewest made the passes of ``data/labels/cpu-dippm-small`` agree best, by a little; fewer are noisy.
_NEIGHBOURS = 4
# A machine that was left alone for so long may be another one afterwards, s.
_BREAK_S = 30.0
_ROUNDS = 10
# Fewer tell of the labels' noise, and not of the machine's pace.
_LEAST_SHARE = 0.5


def take_out_disturbances(labels: Sequence[Label]) -> list[Label]:
    """Labels of one selection with contexts and pace evened out."""
    return even_out_pace(even_out_contexts(labels))


def even_out_contexts(labels: Sequence[Label]) -> list[Label]:
    """Labels as if all processes had held equally much before their model: the median of what they did.

    What a process holds before a model hangs on what it has run before, kernels that it loaded and libraries that it
    imported: no property of the row. What the model added stays as it was measured.

    Args:
        labels: Labels of one selection; those without ``context_mb`` are left as they are.
    """
    contexts = [c for label in labels if (c := label.measurement.context_mb) is not None]
    if not contexts:
        return list(labels)
    usual_mb = statistics.median(contexts)
    return [_with_context(label, usual_mb) for label in labels]


def even_out_pace(labels: Sequence[Label]) -> list[Label]:
    """Labels with the times that the machine would have taken at its usual pace.

    Neighbours on the same host, and its clocks, make all models faster and slower alike, for seconds or for minutes.
    Where a configuration was measured in several passes, each in an order of its own, that can be told from the model:
    ``ln(time) = configuration + pace(moment) + noise``. The two are found in turn, the time of a configuration as the
    median of its measurements, the pace of a moment as that of the rows measured just before and after.

    Args:
        labels: Labels of one selection. They are returned as they are where less than half of their configurations were
            measured twice.

    Returns:
        The labels in their order with other ``latency_ms``.
    """
    known = [place for place, label in enumerate(labels) if label.measurement.latency_ms]
    row_of: dict[str, int] = {}
    row = np.array([row_of.setdefault(labels[place].recipe.key, len(row_of)) for place in known], dtype=np.int64)
    is_repeated = np.bincount(row, minlength=len(row_of)) > 1
    if not row_of or is_repeated.mean() < _LEAST_SHARE:
        return list(labels)
    moments = np.array([_seconds(labels[place]) for place in known])
    order = np.argsort(moments, kind="stable")
    log_ms = np.log([labels[place].measurement.latency_ms or 1.0 for place in known])
    pace = np.zeros(len(known))
    pace[order] = _find_pace(log_ms[order], row[order], is_repeated[row[order]], moments[order])
    result = list(labels)
    for place, value in zip(known, np.exp(log_ms - pace).tolist(), strict=True):
        measurement = labels[place].measurement
        result[place] = replace(labels[place], measurement=replace(measurement, latency_ms=value))
    return result


def _with_context(label: Label, context_mb: float) -> Label:
    measurement = label.measurement
    if measurement.context_mb is None or measurement.memory_mb is None:
        return label
    memory_mb = measurement.memory_mb - measurement.context_mb + context_mb
    return replace(label, measurement=replace(measurement, memory_mb=memory_mb, context_mb=context_mb))


def _find_pace(log_ms: FloatArray, row: IntArray, tells: npt.NDArray[np.bool_], moments: FloatArray) -> FloatArray:
    """Logarithm of how much slower than usual the machine was, in the order of measuring, [N]."""
    members: dict[int, list[int]] = defaultdict(list)
    for place, its_row in enumerate(row.tolist()):
        members[its_row].append(place)
    places = [np.array(each) for each in members.values()]
    runs = np.split(np.arange(len(row)), np.flatnonzero(np.diff(moments) > _BREAK_S) + 1)
    pace = np.zeros(len(row))
    for _ in range(_ROUNDS):
        usual = np.empty(len(row))
        for each in places:
            usual[each] = np.median(log_ms[each] - pace[each])
        rest = log_ms - usual
        for run in runs:
            pace[run] = _smooth(rest[run], tells[run])
        pace -= np.median(pace)
    return pace


def _smooth(rest: FloatArray, tells: npt.NDArray[np.bool_]) -> FloatArray:
    """Median of what the rows around each one tell, itself left out; 0 where none does."""
    values = np.where(tells, rest, np.nan)
    padded = np.concatenate([np.full(_NEIGHBOURS, np.nan), values, np.full(_NEIGHBOURS, np.nan)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * _NEIGHBOURS + 1).copy()
    windows[:, _NEIGHBOURS] = np.nan
    has_any = np.isfinite(windows).any(axis=1)
    result = np.zeros(len(rest))
    result[has_any] = np.nanmedian(windows[has_any], axis=1)
    return result


def _seconds(label: Label) -> float:
    return datetime.fromisoformat(label.measurement.measured_at).timestamp()
