"""What the state of machine and process added to labels, and has nothing to do with the model, taken out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from dippm.datasets.store.label import Label

__all__ = ["even_out_contexts", "even_out_pace", "take_out_disturbances"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Rows before and after one that tell of its moment.
_NEIGHBOURS = 8
# A machine that was left alone for so long may be another one afterwards, s.
_BREAK_S = 30.0
# The pace of a configuration's rows is found without it, and without what was found with it, by parts of all of them.
_FOLDS = 5
_ROUNDS = 10
# Fewer tell of the labels' noise, and not of the machine's pace.
_LEAST_SHARE = 0.5
# Rows that took more time together than went by were measured on several machines, each with a pace of its own.
_MOST_BUSY = 1.2


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
    median of its measurements, the pace of a moment as that of the rows measured just before and after. A
    configuration has no part in the pace that its own rows are given, so that what its passes differ by afterwards is
    their noise.

    Args:
        labels: Labels of one selection. They are returned as they are where less than half of their configurations were
            measured twice, and where several devices measured side by side, whose paces cannot be told apart.

    Returns:
        The labels in their order with other ``latency_ms``.
    """
    moments = [_seconds(label) for label in labels]
    known = np.array(
        [place for place, moment in enumerate(moments) if labels[place].measurement.is_timed and moment is not None]
    )
    row_of: dict[str, int] = {}
    row = np.array([row_of.setdefault(labels[place].recipe.key, len(row_of)) for place in known], dtype=np.int64)
    is_repeated = np.bincount(row, minlength=len(row_of)) > 1
    if not row_of or is_repeated.mean() < _LEAST_SHARE:
        return list(labels)
    known = known[np.argsort([moments[place] for place in known], kind="stable")]
    row = np.array([row_of[labels[place].recipe.key] for place in known], dtype=np.int64)
    at_s = np.array([moments[place] for place in known], dtype=np.float64)
    runs = np.split(np.arange(len(row)), np.flatnonzero(np.diff(at_s) > _BREAK_S) + 1)
    took_s = np.array([labels[place].measurement.duration_s + labels[place].measurement.build_s for place in known])
    if any(took_s[run[1:]].sum() > _MOST_BUSY * (at_s[run[-1]] - at_s[run[0]] + 1.0) for run in runs):
        return list(labels)
    log_ms = np.log([labels[place].measurement.latency_ms or 1.0 for place in known])
    pace = np.zeros(len(row))
    for fold in range(_FOLDS):
        is_own = row % _FOLDS == fold
        pace[is_own] = _find_pace(log_ms, row, is_repeated[row] & ~is_own, runs)[is_own]
    result = list(labels)
    for place, value in zip(known.tolist(), np.exp(log_ms - pace).tolist(), strict=True):
        measurement = labels[place].measurement
        result[place] = replace(labels[place], measurement=replace(measurement, latency_ms=value))
    return result


def _with_context(label: Label, context_mb: float) -> Label:
    measurement = label.measurement
    if measurement.context_mb is None or not measurement.memory_mb:
        return label
    memory_mb = measurement.memory_mb - measurement.context_mb + context_mb
    return replace(label, measurement=replace(measurement, memory_mb=memory_mb, context_mb=context_mb))


def _find_pace(log_ms: FloatArray, row: IntArray, tells: BoolArray, runs: Sequence[IntArray]) -> FloatArray:
    """Logarithm of how much slower than usual the machine was, told by some of the rows, in the order of measuring."""
    order = np.argsort(row, kind="stable")
    counts = np.bincount(row)
    column = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    measured = np.full((len(counts), int(counts.max())), np.nan)
    pace = np.zeros(len(row))
    for _ in range(_ROUNDS):
        measured[row[order], column] = (log_ms - pace)[order]
        rest = np.where(tells, log_ms - np.nanmedian(measured, axis=1)[row], np.nan)
        for run in runs:
            pace[run] = _smooth(rest[run])
        pace -= np.median(pace)
    return pace


def _smooth(rest: FloatArray) -> FloatArray:
    """Median of what the rows around each one tell, itself left out; 0 where none does."""
    beyond = np.full(_NEIGHBOURS, np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.concatenate([beyond, rest, beyond]), 2 * _NEIGHBOURS + 1
    ).copy()
    windows[:, _NEIGHBOURS] = np.nan
    has_any = np.isfinite(windows).any(axis=1)
    result = np.zeros(len(rest))
    result[has_any] = np.nanmedian(windows[has_any], axis=1)
    return result


def _seconds(label: Label) -> float | None:
    """When a label was measured, s; None where it does not say. A time without a zone is taken to be UTC."""
    try:
        moment = datetime.fromisoformat(label.measurement.measured_at)
    except ValueError:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
