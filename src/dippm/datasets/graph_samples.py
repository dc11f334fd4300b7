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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

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
    "build_table",
    "graphs_of_model",
    "parts_of_split",
    "to_offsets",
]

_FORMAT = 2
FRACTIONS = (0.7, 0.15, 0.15)
"""Training, validation and test, as in Table 3 of the DIPPM paper."""

FloatArray = npt.NDArray[np.float64]
OnProgress = Callable[[int, int], None]
_Sample = TypeVar("_Sample")
_Table = TypeVar("_Table", bound="SampleTable")


class Part(IntEnum):
    """Parts of a data set; a sample of ``NONE`` is in no part."""

    TRAINING = 0
    VALIDATION = 1
    TEST = 2
    NONE = 3


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SampleTable:
    """What splits and reports need of samples, whatever features they hold; one sample is one model at one batch.

    Args:
        labels: The label of each sample, with the hash of its graph.
        node_offsets: Where the nodes of each sample begin, and the end.
        edge_offsets: Where its edges begin, and the end.
        cost_sums: Summed costs, see :mod:`dippm.features.cost_sums`.
        targets: Measured figures in the order of :data:`dippm.datasets.selection.METRICS`, NaN where there is none.
        key: Hash of all that made them.
        unread: Models that are missing, or missing at some batches, because their graph cannot be read: model key to
            reason.

    Shapes:
        offsets: [S + 1]; cost_sums: [S, C]; targets: [S, 3].
    """

    labels: tuple[Label, ...]
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
        """Operators of each sample."""
        return np.diff(self.node_offsets)

    @property
    def families(self) -> npt.NDArray[np.str_]:
        """Family of each sample."""
        return np.array([label.recipe.family for label in self.labels])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GraphSamples(SampleTable):
    """Samples as arrays.

    Args:
        node_features: Features of all operators of all samples.
        edge_index: Edges as (source, target), counted within their sample.
        static_features: MACs, batch, convolutions, dense layers and ReLUs.

    Shapes:
        node_features: [N, 32]; edge_index: [2, E]; static_features: [S, 5].
    """

    node_features: npt.NDArray[np.float32]
    edge_index: npt.NDArray[np.int64]
    static_features: npt.NDArray[np.float64]

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
    precisions = sorted({label.configuration.conditions.precision.value for label in labels})

    def compute(cached: CachedGraph, labels: Sequence[Label]) -> Iterable[tuple[PmgnsSample, FloatArray]]:
        batches = [label.recipe.batch for label in labels]
        precision = labels[0].configuration.conditions.precision
        samples = compute_features_of_batches(cached.graph, batches, edges)
        return zip(samples, compute_cost_sums(cached.graph, batches, precision=precision), strict=True)

    return build_table(
        GraphSamples,
        labels,
        folder,
        made_of=[_FORMAT, edges.value, COST_COLUMNS, precisions],
        compute=compute,
        stack=_stack,
        jobs=jobs,
        on_progress=on_progress,
    )


def _stack(samples: Sequence[PmgnsSample]) -> dict[str, npt.NDArray[Any]]:
    return {
        "node_features": np.concatenate([sample.node_features for sample in samples]),
        "edge_index": np.concatenate([sample.edge_index for sample in samples], axis=1),
        "node_offsets": to_offsets([len(sample.node_features) for sample in samples]),
        "edge_offsets": to_offsets([sample.edge_index.shape[1] for sample in samples]),
        "static_features": np.stack([sample.static_features for sample in samples]),
    }


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


def build_table(
    table: type[_Table],
    labels: Sequence[Label],
    folder: str | os.PathLike[str],
    *,
    name: str = "",
    made_of: Sequence[object],
    compute: Callable[[CachedGraph, Sequence[Label]], Iterable[tuple[_Sample, FloatArray]]],
    stack: Callable[[Sequence[_Sample]], dict[str, npt.NDArray[Any]]],
    jobs: int,
    on_progress: OnProgress | None,
) -> _Table:
    """Make a table of samples, or read it back.

    Args:
        table: What is made.
        labels: Labels that have a figure, one of each recipe.
        folder: Cache: the graphs lie in it, see :class:`GraphCache`, and the arrays under ``samples/``.
        name: What the names of such files begin with.
        made_of: What the arrays depend on beside the recipes. Figures are taken from the labels.
        compute: Samples of one graph, which differ in their batch alone, and their summed costs.
        stack: The table's own arrays, and the offsets.
        jobs: Processes that read models which the cache lacks.
        on_progress: Called with the number of models done and their total, first while graphs are read, then while
            samples are computed.

    Raises:
        UsageError: ``samples.empty`` where there is no sample; ``samples.unwritable``.
    """
    text = json.dumps([*made_of, [label.recipe.key for label in labels]], separators=(",", ":"))
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = Path(folder) / "samples" / f"{name}{key}.npz"
    stored = read_arrays(path)
    if stored is not None:
        try:
            return _assemble(table, labels, stored, key=key)
        except (ValueError, TypeError, KeyError, IndexError):
            # Damaged: it is made again.
            pass
    report = on_progress or (lambda _done, _total: None)
    cache = GraphCache(folder)
    failures = build_graphs((label.recipe for label in labels), cache, jobs=jobs, on_progress=report)
    unread = {failure.recipe.model_key: failure.reason for failure in failures}
    recipes = [label.recipe for label in labels]
    positions: dict[str, list[int]] = defaultdict(list)
    for position, recipe in enumerate(recipes):
        positions[recipe.model_key].append(position)
    made: dict[int, tuple[_Sample, FloatArray, str]] = {}
    for done, (model_key, members) in enumerate(positions.items()):
        report(done, len(positions))
        for cached, held in graphs_of_model(recipes, members, cache):
            if cached is None:
                unread.setdefault(model_key, "The cache has lost it.")
                continue
            try:
                found = compute(cached, [labels[position] for position in held])
            except DippmError as exc:
                unread[model_key] = str(exc)
                continue
            for position, (sample, cost_sums) in zip(held, found, strict=True):
                made[position] = sample, cost_sums, cached.fingerprint
    report(len(positions), len(positions))
    if not made:
        reason = next(iter(unread.values()), "no label has a figure.")
        raise UsageError(f"There is nothing to learn from: {reason}", code="samples.empty")
    kept = sorted(made)
    arrays = {
        **stack([made[position][0] for position in kept]),
        "cost_sums": np.stack([made[position][1] for position in kept]),
        "kept": np.array(kept),
        "graph_hashes": np.array([made[position][2] for position in kept]),
        "unread": np.array(json.dumps(unread)),
    }
    write_arrays(path, arrays)
    return _assemble(table, labels, arrays, key=key)


def _assemble(
    table: type[_Table], labels: Sequence[Label], arrays: Mapping[str, npt.NDArray[Any]], *, key: str
) -> _Table:
    chosen = tuple(
        replace(labels[position], graph_hash=str(graph_hash))
        for position, graph_hash in zip(arrays["kept"].tolist(), arrays["graph_hashes"], strict=True)
    )
    targets = read_targets(chosen)
    digest = hashlib.sha256("".join([key, *(label.key for label in chosen)]).encode() + targets.tobytes())
    values: dict[str, Any] = {
        "labels": chosen,
        "targets": targets,
        "key": digest.hexdigest()[:16],
        "unread": json.loads(str(arrays["unread"])),
    }
    values |= {each.name: arrays[each.name] for each in fields(table) if each.name not in values}
    return table(**values)


def to_offsets(counts: Sequence[int]) -> npt.NDArray[np.int64]:
    """Where the rows of each sample begin, and the end."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
