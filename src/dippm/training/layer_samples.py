"""Layers that were measured by themselves, as samples beside traced calls."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dippm.datasets.captured_operators import captured_ms
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.graph_layers import list_layers
from dippm.datasets.label_graphs import load_label_graph
from dippm.datasets.store.label import Label
from dippm.features.physical import PhysicalPlan
from dippm.measuring.layer import Layer
from dippm.measuring.operator_run import OperatorRun
from dippm.training.additive_samples import AdditiveSamples, SampleArrays, build_additive_samples, graph_that_ran
from dippm.training.traced_operators import TracedOperators

__all__ = ["add_layers"]

IndexArray = npt.NDArray[np.int64]


def add_layers(
    samples: AdditiveSamples,
    labels: Sequence[Label],
    traces: Mapping[str, Sequence[OperatorRun]],
    *,
    cache: Path,
    folder: Path,
) -> AdditiveSamples:
    """Samples of calls, and behind them one for each model that has layers which were measured.

    A layer belongs to the first model that has it. Of a model stand those operators alone that are in its layers, with
    all that their graph tells of them, and with what they hear of each other.

    Args:
        samples: Traced calls.
        labels: Models, batches and conditions whose layers were measured.
        traces: The operators of each layer, by its text.
        cache: Folder of the graph cache.
        folder: Where the arrays are kept.
    """
    known = {Layer.from_text(text): runs for text, runs in traces.items()}
    # Samples are made of calls that were timed: these have none, and what stands for it is not read.
    timed = [replace(each, measurement=replace(each.measurement, latency_ms=1.0)) for each in labels]
    whole = build_additive_samples(timed, cache=cache, folder=folder, parameters_m={}, rates=samples.rates)
    graphs = GraphCache(cache)
    own_ms = [_operator_ms(label, known, graphs) for label in whole.labels]
    chosen = [position for position, own in enumerate(own_ms) if own]
    parts = [_part_of(whole.arrays, position, np.array(sorted(own_ms[position]))) for position in chosen]
    times = [np.array([own_ms[position][own] for own in sorted(own_ms[position])]) for position in chosen]
    arrays = _join([samples.arrays, *parts])
    layers_ms = np.array([own.sum() for own in times])
    key = hashlib.sha256(b"".join([samples.key.encode(), whole.key.encode(), *(own.tobytes() for own in times)]))
    return replace(
        samples,
        labels=(*samples.labels, *(whole.labels[position] for position in chosen)),
        arrays=arrays,
        measured_ms=np.concatenate([samples.measured_ms, layers_ms]),
        learned_ms=None if samples.learned_ms is None else np.concatenate([samples.learned_ms, layers_ms]),
        key=key.hexdigest()[:16],
        traced=None if samples.traced is None else _join_traced(samples.traced, times),
        layers=len(samples) + np.arange(len(chosen)),
    )


def _operator_ms(label: Label, known: dict[Layer, Sequence[OperatorRun]], graphs: GraphCache) -> dict[int, float]:
    """Mean time of each class of operators that is in a layer of this label, ms; these layers are known no longer."""
    cached = load_label_graph(label, graphs)
    if cached is None:
        return {}
    conditions = label.configuration.conditions
    plan = PhysicalPlan.from_graph(graph_that_ran(cached.graph, label), conditions.precision)
    found: dict[int, list[float]] = defaultdict(list)
    for each in list_layers(cached.graph, label.recipe.batch, conditions):
        for node, run in zip(each.nodes, known.pop(each.layer, ()), strict=False):
            found[int(plan.class_of[node])].append(captured_ms(run))
    return {own: float(np.mean(times)) for own, times in found.items() if min(times) > 0.0}


def _part_of(arrays: SampleArrays, position: int, classes: IndexArray) -> SampleArrays:
    """Some classes of one sample as a sample of its own, each of them once."""
    first, last = arrays.node_offsets[position], arrays.node_offsets[position + 1]
    place = np.full(last - first, -1, dtype=np.int64)
    place[classes] = np.arange(len(classes))
    messages: dict[str, npt.NDArray[Any]] = {}
    for name in ("producer", "consumer"):
        offsets = getattr(arrays, f"{name}_offsets")
        span = slice(int(offsets[position]), int(offsets[position + 1]))
        source, target = (place[getattr(arrays, f"{name}_{end}")[span]] for end in ("source", "target"))
        is_kept = (source >= 0) & (target >= 0)
        messages |= {
            f"{name}_source": source[is_kept],
            f"{name}_target": target[is_kept],
            f"{name}_weight": getattr(arrays, f"{name}_weight")[span][is_kept],
            f"{name}_offsets": np.array([0, int(is_kept.sum())]),
        }
    return SampleArrays(
        node_features=arrays.node_features[first + classes],
        kernel_ms=arrays.kernel_ms[first + classes],
        launches=arrays.launches[first + classes],
        count=np.ones(len(classes), dtype=np.float32),
        node_offsets=np.array([0, len(classes)]),
        parameters_m=arrays.parameters_m[position : position + 1],
        kept=np.array([-1]),
        graph_hashes=arrays.graph_hashes[position : position + 1],
        **messages,
    )


def _join(parts: Sequence[SampleArrays]) -> SampleArrays:
    """Samples of all parts, one below the other."""
    names = SampleArrays.__slots__
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names if "offsets" not in name}
    offsets = {
        name: np.concatenate([[0], np.cumsum(np.concatenate([np.diff(getattr(part, name)) for part in parts]))])
        for name in names
        if "offsets" in name
    }
    return SampleArrays(**joined, **offsets)


def _join_traced(traced: TracedOperators, times: Sequence[npt.NDArray[np.float64]]) -> TracedOperators:
    """Traced operators of calls and behind them those of layers, each a group of its own."""
    counts = [len(own) for own in times]
    every = np.concatenate([np.arange(count) for count in counts])
    behind = np.cumsum(counts)
    return TracedOperators(
        operator=np.concatenate([traced.operator, every]),
        group=np.concatenate([traced.group, every]),
        member_offsets=np.concatenate([traced.member_offsets, traced.member_offsets[-1] + behind]),
        log_ms=np.concatenate([traced.log_ms, np.log(np.concatenate(times))]).astype(np.float32),
        share=np.concatenate([traced.share, *(own / own.sum() for own in times)]).astype(np.float32),
        group_offsets=np.concatenate([traced.group_offsets, traced.group_offsets[-1] + behind]),
    )
