"""Bytes of live tensors over a pass, of one or several models at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.polynomial import FloatArray, as_batches, evaluate
from dippm.costs.timeline import MemoryTimeline, Purpose

__all__ = ["ALL_COPIES", "LiveMemory", "live_memory", "live_memory_each"]

ALL_COPIES = frozenset({Purpose.LAYOUT_TF32, Purpose.GROUPED_TF32, Purpose.LAYOUT_HALF, Purpose.GROUPED_HALF})
"""The copies that convolutions make on some devices."""

_WORKSPACES = [Purpose.SCRATCH, *sorted(ALL_COPIES)]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LiveMemory:
    """Bytes of live tensors over a forward pass or a training step, without rounding, context or cuBLAS workspace.

    Args:
        batches: Batch sizes.
        live_bytes: Most bytes alive while each node runs, in any step.
        peak_bytes: The highest of them, at least what is there from the start.
        peak_node: The node that reaches it, -1 for a graph without nodes.
        weight_bytes: Weights and buffers, of the peak.
        gradient_bytes: Gradients of weights, of the peak.
        state_bytes: State of the optimizer, of the peak.
        cache_bytes: What a decoder keeps from token to token, of the peak.
        workspace_bytes: Scratch memory of operators, of the peak.
        activation_bytes: Inputs, results and everything else, of the peak.

    Shapes:
        batches and the others: [B]; live_bytes: [B, n_nodes].
    """

    batches: FloatArray
    live_bytes: FloatArray
    peak_bytes: FloatArray
    peak_node: IndexArray
    weight_bytes: FloatArray
    gradient_bytes: FloatArray
    state_bytes: FloatArray
    cache_bytes: FloatArray
    workspace_bytes: FloatArray
    activation_bytes: FloatArray


def live_memory(
    timeline: MemoryTimeline, batches: npt.ArrayLike, *, without: frozenset[Purpose] = ALL_COPIES
) -> LiveMemory:
    """Follow the bytes of live tensors through a forward pass.

    Args:
        timeline: The model's memory events.
        batches: Batch sizes.
        without: Kinds of memory to leave out; by default the copies that only some devices make.
    """
    (live,) = live_memory_each([timeline], batches, without=without)
    return live


def live_memory_each(
    timelines: Sequence[MemoryTimeline], batches: npt.ArrayLike, *, without: frozenset[Purpose] = ALL_COPIES
) -> list[LiveMemory]:
    """What :func:`live_memory` gives, of each of several models.

    Bytes are whole numbers: they add up to the same in any order.
    """
    if not timelines:
        return []
    sizes, models = as_batches(batches), len(timelines)
    purpose = np.concatenate([timeline.purpose for timeline in timelines])
    pieces = evaluate(np.concatenate([timeline.bytes_of for timeline in timelines]), sizes)
    if without:
        is_left_out = np.zeros(len(Purpose), dtype=np.bool_)
        is_left_out[list(without)] = True
        pieces[:, is_left_out[purpose]] = 0.0
    first_piece = _starts_of([timeline.purpose for timeline in timelines])[:-1]

    def summed(piece: IndexArray, model: IndexArray) -> FloatArray:
        return np.array([np.bincount(model, row, minlength=models) for row in pieces.take(piece, axis=1)])

    weight, weight_model = _joined([timeline.weights for timeline in timelines], first_piece)
    given, given_model = _joined([timeline.inputs for timeline in timelines], first_piece)
    weights, inputs, cache = summed(weight, weight_model), summed(given, given_model), np.zeros((len(sizes), models))
    if any(Purpose.CACHE in timeline.purposes for timeline in timelines):
        is_cache = purpose[given] == Purpose.CACHE
        cache = summed(given[is_cache], given_model[is_cache])
    event_start = _starts_of([timeline.event_piece for timeline in timelines])
    event_piece, event_model = _joined([timeline.event_piece for timeline in timelines], first_piece)
    change = pieces.take(event_piece, axis=1) * np.concatenate([timeline.event_sign for timeline in timelines])
    # Behind all events stands what is there from the start, which is the peak of a model without nodes.
    start, count = weights + inputs, len(event_piece)
    live = np.concatenate([change, start], axis=1)
    peak_event = np.tile(count + np.arange(models), (len(sizes), 1))
    for model, (first, stop) in enumerate(pairwise(event_start.tolist())):
        if first < stop:
            own = live[:, first:stop]
            own.cumsum(axis=1, out=own)
            own += start[:, model, None]
            peak_event[:, model] = first + own.argmax(axis=1)
    is_before = np.arange(count) <= peak_event[:, event_model]
    kind = event_model * len(Purpose) + purpose[event_piece]
    held = np.array(
        [np.bincount(kind, row, minlength=models * len(Purpose)) for row in np.where(is_before, change, 0.0)]
    ).reshape(len(sizes), models, len(Purpose))
    workspace = held[..., _WORKSPACES].sum(axis=2)
    gradients, state = held[..., Purpose.GRADIENT], held[..., Purpose.OPTIMIZER_STATE]
    cache = cache + held[..., Purpose.CACHE]
    peak = np.take_along_axis(live, peak_event, axis=1)
    marks = [timeline.node_start for timeline in timelines]
    mark, _ = _joined(marks, event_start[:-1])
    of_nodes = np.maximum.reduceat(live[:, :count], mark, axis=1) if count else np.zeros((len(sizes), 0))
    event_node = np.concatenate([*(timeline.event_node for timeline in timelines), np.full(models, -1)])
    # A row each for a model.
    figures = {
        "peak_bytes": peak,
        "peak_node": event_node[peak_event],
        "weight_bytes": weights,
        "gradient_bytes": gradients,
        "state_bytes": state,
        "cache_bytes": cache,
        "workspace_bytes": workspace,
        "activation_bytes": peak - weights - gradients - state - cache - workspace,
    }
    return [
        LiveMemory(
            batches=sizes,
            live_bytes=of_nodes[:, first:stop].reshape(len(sizes), timeline.steps, -1).max(axis=1)
            if timeline.steps > 1
            else of_nodes[:, first:stop],
            **{name: figure[:, model] for name, figure in figures.items()},
        )
        for model, (timeline, (first, stop)) in enumerate(
            zip(timelines, pairwise(_starts_of(marks).tolist()), strict=True)
        )
    ]


def _starts_of(columns: Sequence[npt.NDArray[np.generic]]) -> IndexArray:
    """Where each begins where they lie side by side, and behind the last one, [n + 1]."""
    return np.cumsum([0, *map(len, columns)])


def _joined(columns: Sequence[IndexArray], before: IndexArray) -> tuple[IndexArray, IndexArray]:
    """Places that each model numbers from 0, numbered through, and the model that each is of.

    Args:
        columns: The places, of each model.
        before: What is added to those of each model.

    Shapes:
        before: [models]; both results: [n].
    """
    if len(columns) == 1:
        return columns[0] + before[0], np.zeros(len(columns[0]), dtype=np.int64)
    model = np.repeat(np.arange(len(columns)), [len(column) for column in columns])
    return np.concatenate(columns) + before[model], model
