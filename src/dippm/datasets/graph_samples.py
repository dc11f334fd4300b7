"""Graphs and labels as a few large arrays: what graph networks are trained on.

One sample is one model at one batch. All node features stand below each other in one array, all edges in another, and
offsets tell whose they are, so that a batch of graphs is a few gathers. Building reads every graph once; the arrays
are kept in a file that knows what made it, and are read back where nothing has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dippm.datasets.array_file import read_arrays, write_arrays
from dippm.datasets.graph_cache import CachedGraph, GraphCache, build_graphs
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.selection import read_targets
from dippm.datasets.splits import Split, split_by_graph
from dippm.datasets.store.label import Label
from dippm.errors import DippmError, UsageError
from dippm.features.cost_sums import COST_COLUMNS, compute_cost_sums
from dippm.features.pmgns import EdgeMode, PmgnsSample, compute_features_of_batches

__all__ = [
    "FRACTIONS",
    "GraphSamples",
    "Part",
    "SampleTable",
    "assign_parts",
    "build_samples",
    "graphs_of_model",
    "parts_of_split",
    "to_offsets",
]

_FORMAT = 2
FRACTIONS = (0.7, 0.15, 0.15)
"""Training, validation and test, as in Table 3 of the DIPPM paper."""

OnProgress = Callable[[int, int], None]
_ARRAYS = ("node_features", "edge_index", "node_offsets", "edge_offsets", "static_features", "cost_sums")


class Part(IntEnum):
    """Parts of a data set; a sample of ``NONE`` is in no part."""

    TRAINING = 0
    VALIDATION = 1
    TEST = 2
    NONE = 3


class SampleTable(Protocol):
    """What splits and reports need of samples, whatever features they hold; fields as of :class:`GraphSamples`."""

    @property
    def labels(self) -> tuple[Label, ...]:
        """The label of each sample."""
        ...

    @property
    def targets(self) -> npt.NDArray[np.float64]:
        """Measured figures, [S, 3]."""
        ...

    @property
    def cost_sums(self) -> npt.NDArray[np.float64]:
        """Summed costs, [S, C]."""
        ...

    @property
    def node_counts(self) -> npt.NDArray[np.int64]:
        """Operators of each sample."""
        ...

    @property
    def families(self) -> npt.NDArray[np.str_]:
        """Family of each sample."""
        ...

    @property
    def key(self) -> str:
        """Hash of all that made them."""
        ...

    @property
    def unread(self) -> dict[str, str]:
        """Models whose graph cannot be read: model key to reason."""
        ...

    def __len__(self) -> int:
        """Number of samples."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GraphSamples:
    """Samples as arrays.

    Args:
        labels: The label of each sample, with the hash of its graph.
        node_features: Features of all operators of all samples.
        edge_index: Edges as (source, target), counted within their sample.
        node_offsets: Where the nodes of each sample begin, and the end.
        edge_offsets: Where its edges begin, and the end.
        static_features: MACs, batch, convolutions, dense layers and ReLUs.
        cost_sums: Summed costs, see :mod:`dippm.features.cost_sums`.
        targets: Measured figures in the order of :data:`dippm.datasets.selection.METRICS`, NaN where there is none.
        key: Hash of all that made them.
        unread: Models that are missing, or missing at some batches, because their graph cannot be read: model key to
            reason.

    Shapes:
        node_features: [N, 32]; edge_index: [2, E]; offsets: [S + 1]; static_features: [S, 5]; cost_sums: [S, C];
        targets: [S, 3].
    """

    labels: tuple[Label, ...]
    node_features: npt.NDArray[np.float32]
    edge_index: npt.NDArray[np.int64]
    node_offsets: npt.NDArray[np.int64]
    edge_offsets: npt.NDArray[np.int64]
    static_features: npt.NDArray[np.float64]
    cost_sums: npt.NDArray[np.float64]
    targets: npt.NDArray[np.float64]
    key: str
    unread: dict[str, str]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def node_counts(self) -> npt.NDArray[np.int64]:
        """Operators of each sample."""
        return np.diff(self.node_offsets)

    @property
    def families(self) -> npt.NDArray[np.str_]:
        """Family of each sample."""
        return np.array([label.recipe.family for label in self.labels])

    def nodes_of(self, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Features of all nodes of these samples."""
        starts, ends = self.node_offsets[chosen], self.node_offsets[chosen + 1]
        return np.concatenate([self.node_features[start:end] for start, end in zip(starts, ends, strict=True)])


def assign_parts(samples: SampleTable, *, seed: int = 0) -> npt.NDArray[np.int8]:
    """Part of each sample, see :class:`Part`: random by model, all batches of a graph in one part."""
    return parts_of_split(samples, split_by_graph(samples.labels, fractions=FRACTIONS, seed=seed))


def parts_of_split(samples: SampleTable, split: Split) -> npt.NDArray[np.int8]:
    """Part of each sample under a split of its labels."""
    part_of = {
        label.key: code
        for code, part in zip(
            (Part.TRAINING, Part.VALIDATION, Part.TEST), (split.training, split.validation, split.test), strict=True
        )
        for label in part
    }
    return np.array([part_of.get(label.key, Part.NONE) for label in samples.labels], dtype=np.int8)


def build_samples(
    labels: Sequence[Label],
    folder: str | os.PathLike[str],
    *,
    edges: EdgeMode = EdgeMode.DATA,
    jobs: int = 1,
    on_progress: OnProgress | None = None,
) -> GraphSamples:
    """Make the samples of labels, or read them back.

    Args:
        labels: Labels of one selection, one of each recipe.
        folder: Cache: the graphs lie in it, see :class:`GraphCache`, and the arrays under ``samples/``.
        edges: Edges of the graphs.
        jobs: Processes that read models which the cache lacks.
        on_progress: Called with the number of models done and their total, first while graphs are read, then while
            features are computed.

    Raises:
        UsageError: ``samples.empty`` where no graph can be read or no label has a figure; ``samples.unwritable``.
    """
    labels = [label for label in labels if np.isfinite(read_targets([label])).any()]
    key = _key_of(labels, edges)
    path = Path(folder) / "samples" / f"{key}.npz"
    stored = _read(path, labels, key=key)
    if stored is not None:
        return stored
    report = on_progress or (lambda _done, _total: None)
    cache = GraphCache(folder)
    failures = build_graphs((label.recipe for label in labels), cache, jobs=jobs, on_progress=report)
    unread = {failure.recipe.model_key: failure.reason for failure in failures}
    samples = _compute(labels, cache, key=key, edges=edges, unread=unread, report=report)
    _write(path, samples, labels)
    return samples


def _key_of(labels: Sequence[Label], edges: EdgeMode) -> str:
    """Names what the arrays are made of: models, batches and precision. The figures are taken from the labels."""
    precisions = sorted({label.configuration.conditions.precision.value for label in labels})
    made_of = [_FORMAT, edges.value, COST_COLUMNS, precisions, [label.recipe.key for label in labels]]
    return hashlib.sha256(json.dumps(made_of, separators=(",", ":")).encode()).hexdigest()[:16]


def _compute(
    labels: Sequence[Label], cache: GraphCache, *, key: str, edges: EdgeMode, unread: dict[str, str], report: OnProgress
) -> GraphSamples:
    recipes = [label.recipe for label in labels]
    positions: dict[str, list[int]] = defaultdict(list)
    for position, recipe in enumerate(recipes):
        positions[recipe.model_key].append(position)
    made: dict[int, tuple[PmgnsSample, npt.NDArray[np.float64], str]] = {}
    for done, (model_key, members) in enumerate(positions.items()):
        report(done, len(positions))
        for cached, held in graphs_of_model(recipes, members, cache):
            if cached is None:
                unread.setdefault(model_key, "The cache has lost it.")
                continue
            batches = [recipes[position].batch for position in held]
            precision = labels[members[0]].configuration.conditions.precision
            try:
                features = compute_features_of_batches(cached.graph, batches, edges)
                sums = compute_cost_sums(cached.graph, batches, precision=precision)
            except DippmError as exc:
                unread[model_key] = str(exc)
                continue
            for position, sample, row in zip(held, features, sums, strict=True):
                made[position] = sample, row, cached.fingerprint
    report(len(positions), len(positions))
    if not made:
        reason = next(iter(unread.values()), "no label has a figure.")
        raise UsageError(f"There is nothing to learn from: {reason}", code="samples.empty")
    kept = np.array(sorted(made), dtype=np.int64)
    features = [made[position][0] for position in kept]
    arrays: dict[str, npt.NDArray[Any]] = {
        "node_features": np.concatenate([sample.node_features for sample in features]),
        "edge_index": np.concatenate([sample.edge_index for sample in features], axis=1),
        "node_offsets": to_offsets([len(sample.node_features) for sample in features]),
        "edge_offsets": to_offsets([sample.edge_index.shape[1] for sample in features]),
        "static_features": np.stack([sample.static_features for sample in features]),
        "cost_sums": np.stack([made[position][1] for position in kept]),
        "kept": kept,
        "graph_hashes": np.array([made[position][2] for position in kept]),
        "unread": np.array(json.dumps(unread)),
    }
    return _assemble(labels, arrays, key=key)


def graphs_of_model(
    recipes: Sequence[Recipe], members: list[int], cache: GraphCache
) -> Iterator[tuple[CachedGraph | None, list[int]]]:
    """Graphs of one model with the positions of the recipes that each is for: one graph, or one for each batch."""
    for position in members:
        recipe = recipes[position]
        cached = cache.load(recipe.model_key, batch=recipe.batch)
        if cached is not None and cached.graph.fixed_batch is None:
            yield cached, members
            return
        yield cached, [position]


def _assemble(labels: Sequence[Label], arrays: Mapping[str, npt.NDArray[Any]], *, key: str) -> GraphSamples:
    chosen = tuple(
        replace(labels[position], graph_hash=str(graph_hash))
        for position, graph_hash in zip(arrays["kept"].tolist(), arrays["graph_hashes"], strict=True)
    )
    targets = read_targets(chosen)
    digest = hashlib.sha256("".join([key, *(label.key for label in chosen)]).encode() + targets.tobytes())
    return GraphSamples(
        labels=chosen,
        targets=targets,
        key=digest.hexdigest()[:16],
        unread=json.loads(str(arrays["unread"])),
        **{name: arrays[name] for name in _ARRAYS},
    )


def to_offsets(counts: Sequence[int]) -> npt.NDArray[np.int64]:
    """Where the rows of each sample begin, and the end."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def _read(path: Path, labels: Sequence[Label], *, key: str) -> GraphSamples | None:
    """The samples of a file, or None where there is none in good order."""
    stored = read_arrays(path)
    try:
        return None if stored is None else _assemble(labels, stored, key=key)
    except (ValueError, TypeError, KeyError, IndexError):
        # Damaged: it is made again.
        return None


def _write(path: Path, samples: GraphSamples, labels: Sequence[Label]) -> None:
    position_of = {label.key: position for position, label in enumerate(labels)}
    write_arrays(
        path,
        {
            "kept": np.array([position_of[label.key] for label in samples.labels]),
            "graph_hashes": np.array([label.graph_hash for label in samples.labels]),
            "unread": np.array(json.dumps(samples.unread)),
            **{name: getattr(samples, name) for name in _ARRAYS},
        },
    )
