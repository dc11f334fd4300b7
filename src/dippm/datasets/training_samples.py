"""Training steps and labels as a few large arrays: what DNNPerf's networks are trained on.

As :mod:`dippm.datasets.graph_samples`, with the graph of a whole training step, and values of its edges.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Mode, Optimizer
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.datasets.array_file import read_arrays, write_arrays
from dippm.datasets.graph_cache import CachedGraph, GraphCache, build_graphs
from dippm.datasets.graph_samples import graphs_of_model, to_offsets
from dippm.datasets.selection import read_targets
from dippm.datasets.store.label import Label
from dippm.devices import DeviceSpec, find_device
from dippm.errors import DippmError, UsageError
from dippm.features.cost_sums import COST_COLUMNS, compute_cost_sums
from dippm.features.dnnperf import (
    EDGE_COLUMNS,
    NODE_COLUMNS,
    OPERATORS,
    DnnperfSample,
    compute_dnnperf_features,
)

__all__ = ["TrainingSamples", "build_training_samples"]

_FORMAT = 1
_ARRAYS = ("operators", "node_values", "edge_index", "edge_values", "node_offsets", "edge_offsets", "cost_sums")

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrainingSamples:
    """Samples as arrays; one is one model at one batch.

    Args:
        labels: The label of each sample, with the hash of its forward graph.
        operators: Operator of all nodes of all samples, places in :data:`dippm.features.dnnperf.OPERATORS`.
        node_values: Their values, the columns of :data:`dippm.features.dnnperf.NODE_COLUMNS`.
        edge_index: Edges as (source, target), counted within their sample.
        edge_values: Their values, the columns of :data:`dippm.features.dnnperf.EDGE_COLUMNS`.
        node_offsets: Where the nodes of each sample begin, and the end.
        edge_offsets: Where its edges begin, and the end.
        cost_sums: Summed costs of the whole step, see :mod:`dippm.features.cost_sums`.
        targets: Measured figures in the order of :data:`dippm.datasets.selection.METRICS`, NaN where there is none; the
            latency of a training step is its step time.
        key: Hash of all that made them.
        unread: Models that are missing, or missing at some batches, because there is no graph of their training step:
            model key to reason.

    Shapes:
        operators: [N]; node_values: [N, V]; edge_index: [2, E]; edge_values: [E, W]; offsets: [S + 1];
        cost_sums: [S, C]; targets: [S, 3].
    """

    labels: tuple[Label, ...]
    operators: npt.NDArray[np.int16]
    node_values: npt.NDArray[np.float32]
    edge_index: npt.NDArray[np.int32]
    edge_values: npt.NDArray[np.float32]
    node_offsets: npt.NDArray[np.int64]
    edge_offsets: npt.NDArray[np.int64]
    cost_sums: npt.NDArray[np.float64]
    targets: npt.NDArray[np.float64]
    key: str
    unread: dict[str, str]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def node_counts(self) -> npt.NDArray[np.int64]:
        """Operators of each sample's training step."""
        return np.diff(self.node_offsets)

    @property
    def families(self) -> npt.NDArray[np.str_]:
        """Family of each sample."""
        return np.array([label.recipe.family for label in self.labels])


def build_training_samples(
    labels: Sequence[Label],
    folder: str | os.PathLike[str],
    *,
    jobs: int = 1,
    on_progress: OnProgress | None = None,
) -> TrainingSamples:
    """Make the samples of labels of training, or read them back.

    Args:
        labels: Labels of one selection of training mode, one of each recipe.
        folder: Cache: the forward graphs lie in it, see :class:`GraphCache`, and the arrays under ``samples/``.
        jobs: Processes that read models which the cache lacks.
        on_progress: Called with the number of models done and their total, first while graphs are read, then while
            features are computed.

    Raises:
        UsageError: ``samples.mode`` where a label is not of training, ``samples.empty`` where there is no graph of a
            training step or no label has a figure; ``samples.unwritable``.
    """
    for label in labels:
        if label.configuration.conditions.mode is not Mode.TRAINING:
            raise UsageError(
                f"Samples of training steps need labels of training. Got one of {label.recipe.architecture} of "
                f"{label.configuration.conditions.mode}.",
                code="samples.mode",
                cure="Choose labels of the mode training.",
            )
    labels = [label for label in labels if np.isfinite(read_targets([label])).any()]
    key = _key_of(labels)
    path = Path(folder) / "samples" / f"training-{key}.npz"
    stored = read_arrays(path)
    if stored is not None:
        try:
            return _assemble(labels, stored, key=key)
        except (ValueError, TypeError, KeyError, IndexError):
            # Damaged: it is made again.
            pass
    report = on_progress or (lambda _done, _total: None)
    cache = GraphCache(folder)
    failures = build_graphs((label.recipe for label in labels), cache, jobs=jobs, on_progress=report)
    unread = {failure.recipe.model_key: failure.reason for failure in failures}
    arrays = _compute(labels, cache, unread=unread, report=report)
    write_arrays(path, arrays)
    return _assemble(labels, arrays, key=key)


def _key_of(labels: Sequence[Label]) -> str:
    """Names what the arrays are made of: models, batches, conditions and device. Figures are taken from the labels."""
    made_of = [
        _FORMAT,
        [kind.value for kind in OPERATORS],
        NODE_COLUMNS,
        EDGE_COLUMNS,
        COST_COLUMNS,
        sorted({str([label.measurement.device, *_settings_of(label)]) for label in labels}),
        [label.recipe.key for label in labels],
    ]
    return hashlib.sha256(json.dumps(made_of, separators=(",", ":")).encode()).hexdigest()[:16]


def _settings_of(label: Label) -> tuple[str, str]:
    conditions = label.configuration.conditions
    return (conditions.optimizer or Optimizer.SGD).value, conditions.precision.value


def _compute(
    labels: Sequence[Label], cache: GraphCache, *, unread: dict[str, str], report: OnProgress
) -> dict[str, npt.NDArray[Any]]:
    recipes = [label.recipe for label in labels]
    positions: dict[str, list[int]] = defaultdict(list)
    for position, recipe in enumerate(recipes):
        positions[recipe.model_key].append(position)
    made: dict[int, tuple[DnnperfSample, npt.NDArray[np.float64], str]] = {}
    for done, (model_key, members) in enumerate(positions.items()):
        report(done, len(positions))
        for cached, held in graphs_of_model(recipes, members, cache):
            if cached is None:
                unread.setdefault(model_key, "The cache has lost it.")
                continue
            try:
                of_graph = _compute_graph(cached, [labels[position] for position in held])
            except DippmError as exc:
                unread[model_key] = str(exc)
                continue
            made.update(zip(held, of_graph, strict=True))
    report(len(positions), len(positions))
    if not made:
        reason = next(iter(unread.values()), "no label has a figure.")
        raise UsageError(f"There is nothing to learn from: {reason}", code="samples.empty")
    kept = sorted(made)
    samples = [made[position][0] for position in kept]
    return {
        "operators": np.concatenate([sample.operators for sample in samples]),
        "node_values": np.concatenate([sample.node_values for sample in samples]),
        "edge_index": np.concatenate([sample.edge_index for sample in samples], axis=1).astype(np.int32),
        "edge_values": np.concatenate([sample.edge_values for sample in samples]),
        "node_offsets": to_offsets([len(sample.operators) for sample in samples]),
        "edge_offsets": to_offsets([sample.edge_index.shape[1] for sample in samples]),
        "cost_sums": np.stack([made[position][1] for position in kept]),
        "kept": np.array(kept),
        "graph_hashes": np.array([made[position][2] for position in kept]),
        "unread": np.array(json.dumps(unread)),
    }


def _compute_graph(
    cached: CachedGraph, labels: Sequence[Label]
) -> list[tuple[DnnperfSample, npt.NDArray[np.float64], str]]:
    """Samples of one graph: they differ in their batch alone."""
    conditions = labels[0].configuration.conditions
    training = make_training_graph(
        cached.graph,
        TrainingSettings(optimizer=conditions.optimizer or Optimizer.SGD, precision=conditions.precision),
    )
    batches = [label.recipe.batch for label in labels]
    samples = compute_dnnperf_features(training, batches, _known_device(labels[0].measurement.device))
    sums = compute_cost_sums(training.graph, batches, precision=training.precision)
    return [(sample, row, cached.fingerprint) for sample, row in zip(samples, sums, strict=True)]


def _known_device(name: str) -> DeviceSpec | None:
    """The device's data sheet, None for one that the catalogue does not have, such as a CPU."""
    try:
        return find_device(name)
    except DippmError:
        return None


def _assemble(labels: Sequence[Label], arrays: Mapping[str, npt.NDArray[Any]], *, key: str) -> TrainingSamples:
    chosen = tuple(
        replace(labels[position], graph_hash=str(graph_hash))
        for position, graph_hash in zip(arrays["kept"].tolist(), arrays["graph_hashes"], strict=True)
    )
    targets = read_targets(chosen)
    digest = hashlib.sha256("".join([key, *(label.key for label in chosen)]).encode() + targets.tobytes())
    return TrainingSamples(
        labels=chosen,
        targets=targets,
        key=digest.hexdigest()[:16],
        unread=json.loads(str(arrays["unread"])),
        **{name: arrays[name] for name in _ARRAYS},
    )
