"""Pairs of batches at the border of a card's memory: one that fitted, and the next larger one, which failed.

The timm project's training benchmark on an RTX 3090 steps its batch down a ladder until a run no longer fails for
memory, so every row below the first step is such a pair. How the runs used memory is taken from the benchmark's script
and from PyTorch 1.12: gradients are set to zero and not released, the backward pass runs inside autocast and so keeps
its copies of the weights, and attention is not fused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dippm.costs.conditions import Layout, Mode, Runtime
from dippm.costs.live_tensors import live_memory
from dippm.costs.memory import reserved_bytes
from dippm.costs.timeline import MemoryTimeline
from dippm.costs.training_step.training_graph import Phase, TrainingGraph, TrainingSettings, make_training_graph
from dippm.costs.workload import Workload
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.graph_samples import graphs_of_model
from dippm.datasets.imports.timm import labels_of_timm_rows
from dippm.datasets.software_graphs import as_measured, software_of
from dippm.datasets.store.label import Label
from dippm.datasets.timm_tables import read_timm_tables
from dippm.errors import DippmError, UsageError
from dippm.evaluation.benchmarked_models import refuses_batch
from dippm.graph import Graph, OpKind, TensorRole
from dippm.measuring.measurement import Outcome
from dippm.units import BYTES_PER_MIB

__all__ = ["BORDER_DEVICE", "Border", "BorderPair", "border_pairs", "inference_borders", "needed_mb"]

#: The card of the training tables.
BORDER_DEVICE = "GeForce RTX 3090"

_HALVINGS = 6
_COARSE_MB = 8.0
# Models that timm builds differently today have another number of weights.
_SAME_PARAMETERS = 0.005


@dataclass(frozen=True, kw_only=True, slots=True)
class Border:
    """A batch that fitted and the next larger one, which did not.

    Args:
        label: The run that fitted.
        failed_batch: The batch that failed.
        is_refused: Whether a kernel refuses the batch that failed, so that it says nothing of memory.
    """

    label: Label
    failed_batch: int
    is_refused: bool = False

    @property
    def model(self) -> str:
        """Name of the model in timm."""
        return self.label.recipe.architecture.rpartition(":")[2]

    @property
    def layout(self) -> Layout:
        """Memory order of the images."""
        return self.label.configuration.conditions.layout


@dataclass(frozen=True, kw_only=True, slots=True)
class BorderPair(Border):
    """A border of a training table with both batches replayed; its label has the hash of its graph.

    Args:
        label: The run that fitted.
        failed_batch: The batch that failed.
        fitted_mb: What the batch that fitted needs, see :func:`needed_mb`.
        failed_mb: What the batch that failed needs.
    """

    fitted_mb: float
    failed_mb: float


def inference_borders(folder: Path, cache: GraphCache) -> list[Border]:
    """Borders of the inference tables, of models whose graph lies in the cache; their labels have its hash.

    Models that timm builds differently today are left out, and those whose graph holds for one batch alone.

    Args:
        folder: The folder ``timm`` of the measured tables.
        cache: Graphs by recipe.

    Raises:
        UsageError: ``data.missing`` where there is no such table.
    """
    rows = [
        row for row in read_timm_tables(folder) if row.mode == Mode.INFERENCE and row.runtime == Runtime.EAGER.value
    ]
    parameters = {(f"zoo:timm:{row.model}", row.image_size): row.parameters_m for row in rows}
    failed: Label | None = None
    models: dict[str, list[Border]] = defaultdict(list)
    # A label of a batch that failed comes before that of the row which tells of it.
    for label in labels_of_timm_rows(rows):
        if _has_fitted(label) and failed is not None:
            models[label.recipe.model_key].append(Border(label=label, failed_batch=failed.recipe.batch))
        failed = None if _has_fitted(label) else label
    known = set(cache.keys())
    result = []
    for key in sorted(models.keys() & known):
        recipe = models[key][0].label.recipe
        cached = cache.load(key, batch=recipe.batch)
        published = parameters[recipe.architecture, recipe.inputs.positional[0].shape[-1]]
        if cached is None or cached.graph.fixed_batch is not None or not _has_weights(cached.graph, published):
            continue
        for border in models[key]:
            graph = as_measured(cached.graph, border.label)
            is_refused = refuses_batch(graph, border.failed_batch, border.layout)
            label = replace(border.label, graph_hash=cached.fingerprint)
            result.append(replace(border, label=label, is_refused=is_refused))
    return result


def border_pairs(folder: Path, cache: GraphCache) -> tuple[list[BorderPair], dict[str, str]]:
    """Read the training tables, and replay both batches of every pair whose graph lies in the cache.

    Args:
        folder: The folder ``timm`` of the measured tables.
        cache: Graphs by recipe.

    Returns:
        The pairs, and the models that were left out with the reason.

    Raises:
        UsageError: ``data.missing`` where there is no such table.
    """
    rows = [row for row in read_timm_tables(folder) if row.mode == Mode.TRAINING and row.device == BORDER_DEVICE]
    parameters = {f"zoo:timm:{row.model}": row.parameters_m for row in rows}
    models: dict[str, list[Label]] = defaultdict(list)
    for label in labels_of_timm_rows(rows):
        models[label.recipe.model_key].append(label)
    pairs: list[BorderPair] = []
    left_out: dict[str, str] = {}
    for labels in models.values():
        if any(label.measurement.outcome is Outcome.OUT_OF_MEMORY for label in labels):
            published = parameters[labels[0].recipe.architecture]
            try:
                pairs += _pairs_of_model(labels, cache, parameters_m=published)
            except DippmError as exc:
                left_out[labels[0].recipe.architecture.rpartition(":")[2]] = str(exc)
    return pairs, left_out


def needed_mb(timeline: MemoryTimeline, batch: int) -> float:
    """The smallest memory for tensors, MiB, with which the caching allocator gets through.

    Between the live tensors at their peak and what the allocator would hold without a limit, to a sixty-fourth of it,
    without the copies of convolutions, of which PyTorch makes none where there is no room for them.
    """
    low = float(live_memory(timeline, batch).peak_bytes[0])
    high = float(reserved_bytes(timeline, batch)[0])
    for _ in range(_HALVINGS):
        if high - low < _COARSE_MB * BYTES_PER_MIB:
            break
        middle = (low + high) / 2
        if reserved_bytes(timeline, batch, capacity_bytes=int(middle))[0] >= 0:
            high = middle
        else:
            low = middle
    return high / BYTES_PER_MIB


def _pairs_of_model(labels: Sequence[Label], cache: GraphCache, *, parameters_m: float) -> Iterator[BorderPair]:
    fitted = {label.configuration.conditions.layout: label for label in labels if _has_fitted(label)}
    failed = {label.configuration.conditions.layout: label for label in labels if not _has_fitted(label)}
    chosen = [*fitted.values(), *failed.values()]
    timelines: dict[int, MemoryTimeline] = {}
    fingerprint = ""
    for cached, members in graphs_of_model([label.recipe for label in chosen], list(range(len(chosen))), cache):
        if cached is None:
            raise UsageError("Its graph is not in the cache.", code="graph_cache.missing")
        if not _has_weights(cached.graph, parameters_m):
            weights_m = cached.graph.parameter_count / 1e6
            raise UsageError(
                f"Today's timm builds it with {weights_m:.1f} million weights, the run had {parameters_m:.1f} million.",
                code="recipe.changed",
            )
        timeline = _timeline_of(cached.graph, chosen[members[0]])
        timelines |= {chosen[member].recipe.batch: timeline for member in members}
        fingerprint = cached.fingerprint
    for layout, label in fitted.items():
        if layout in failed:
            batches = label.recipe.batch, failed[layout].recipe.batch
            fitted_mb, failed_mb = (needed_mb(timelines[batch], batch) for batch in batches)
            yield BorderPair(
                label=replace(label, graph_hash=fingerprint),
                failed_batch=batches[1],
                fitted_mb=fitted_mb,
                failed_mb=failed_mb,
            )


def _has_weights(graph: Graph, parameters_m: float) -> bool:
    return abs(graph.parameter_count / 1e6 / parameters_m - 1.0) <= _SAME_PARAMETERS


def _has_fitted(label: Label) -> bool:
    return label.measurement.outcome is Outcome.OK


def _timeline_of(graph: Graph, label: Label) -> MemoryTimeline:
    conditions = label.configuration.conditions
    if conditions.optimizer is None:
        raise UsageError("The label names no optimizer.", code="optimizer.unknown")
    settings = TrainingSettings(
        optimizer=conditions.optimizer,
        precision=conditions.precision,
        keeps_gradients=software_of(label.measurement.software.framework).keeps_gradients,
    )
    training = make_training_graph(as_measured(graph, label), settings)
    return MemoryTimeline.from_workload(Workload.from_graph(_as_benchmarked(training), training.precision))


def _as_benchmarked(training: TrainingGraph) -> Graph:
    """The step with autocast's copies of weights kept until the backward pass ends; each node gives back the rest."""
    graph = training.graph
    copies = {
        node.outputs[0]
        for node in graph.nodes
        if node.kind is OpKind.CAST
        and node.source_op == "autocast"
        and graph.tensors[node.inputs[0]].role is TensorRole.PARAMETER
    }
    backward_end = int(np.flatnonzero(training.phase == Phase.BACKWARD)[-1])
    nodes = []
    for position, node in enumerate(graph.nodes):
        kept = [index for index in node.releases if index not in copies]
        if position == backward_end:
            kept += sorted(copies)
        nodes.append(replace(node, releases=tuple(kept)))
    return replace(graph, nodes=tuple(nodes))
