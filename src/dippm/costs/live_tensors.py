"""Bytes of live tensors over a pass, of one or several models at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    sizes = as_batches(batches)
    pieces = evaluate(np.concatenate([timeline.bytes_of for timeline in timelines]), sizes)
    if without:
        is_left_out = np.zeros(len(Purpose), dtype=np.bool_)
        is_left_out[list(without)] = True
        pieces[:, is_left_out[np.concatenate([timeline.purpose for timeline in timelines])]] = 0.0
    ends = np.cumsum([len(timeline.purpose) for timeline in timelines])[:-1]
    return [
        _follow(timeline, own, sizes) for timeline, own in zip(timelines, np.split(pieces, ends, axis=1), strict=True)
    ]


def _follow(timeline: MemoryTimeline, pieces: FloatArray, batches: FloatArray) -> LiveMemory:
    """The live memory of one model; pieces: bytes of each, [B, P]."""
    weights, given = (pieces.take(own, axis=1) for own in (timeline.weights, timeline.inputs))
    weight_bytes = weights.sum(axis=1)
    start = weight_bytes + given.sum(axis=1)
    cache_bytes = given[:, timeline.purpose[timeline.inputs] == Purpose.CACHE].sum(axis=1)
    held = np.zeros((len(batches), len(Purpose)))
    peak_bytes, peak_node = start, np.full(len(batches), -1)
    of_nodes = np.zeros((len(batches), 0))
    if len(timeline.event_piece):
        change = pieces.take(timeline.event_piece, axis=1)
        change *= timeline.event_sign
        live = change.cumsum(axis=1)
        peak_event = live.argmax(axis=1)
        peak_bytes = live[np.arange(len(batches)), peak_event] + start
        peak_node = timeline.event_node[peak_event]
        for own, row, stop in zip(held, change, (peak_event + 1).tolist(), strict=True):
            kind = timeline.purpose.take(timeline.event_piece[:stop])
            own[:] = np.bincount(kind, row[:stop], minlength=len(Purpose))
        of_nodes = np.maximum.reduceat(live, timeline.node_start, axis=1) + start[:, None]
        if timeline.steps > 1:
            of_nodes = of_nodes.reshape(len(batches), timeline.steps, -1).max(axis=1)
    cache_bytes += held[:, Purpose.CACHE]
    gradients, state, workspace = held[:, Purpose.GRADIENT], held[:, Purpose.OPTIMIZER_STATE], held[:, _WORKSPACES]
    workspace_bytes = workspace.sum(axis=1)
    return LiveMemory(
        batches=batches,
        live_bytes=of_nodes,
        peak_bytes=peak_bytes,
        peak_node=peak_node,
        weight_bytes=weight_bytes,
        gradient_bytes=gradients,
        state_bytes=state,
        cache_bytes=cache_bytes,
        workspace_bytes=workspace_bytes,
        activation_bytes=peak_bytes - weight_bytes - gradients - state - cache_bytes - workspace_bytes,
    )
