"""Labels with their graphs as physical quantities, in a few large arrays: what the additive network is trained on."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import dippm.costs
import dippm.features
import dippm.graph
from dippm.costs.conditions import Mode, Optimizer
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.rates import Rates
from dippm.costs.training_step.training_graph import TrainingGraph, TrainingSettings, make_training_graph
from dippm.datasets import fast_norms, label_graphs, software_graphs
from dippm.datasets.array_file import read_arrays, write_arrays
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.graph_samples import to_offsets
from dippm.datasets.label_graphs import load_label_graph
from dippm.datasets.software_graphs import as_measured
from dippm.datasets.store.label import Label
from dippm.devices import DeviceSpec, find_device
from dippm.errors import DippmError, UsageError
from dippm.features.physical import COLUMNS, PhysicalPlan
from dippm.features.physical.columns import AT
from dippm.graph import Graph
from dippm.predictors.calibration import Calibration
from dippm.training.traced_operators import TracedOperators

__all__ = ["AdditiveSamples", "build_additive_samples", "graph_that_ran", "shared_rates"]

_LOG = logging.getLogger(__name__)

# The tables give millions with two digits.
_PARAMETER_SLACK, _PARAMETER_ROUNDING = 0.02, 0.02

IndexArray = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SampleArrays:
    """Arrays of all samples, one below the other.

    Args:
        node_features: Features of all classes of operators.
        kernel_ms: Kernel time of each by predictor 0.
        launches: Kernels that each launches.
        count: Operators of each class.
        node_offsets: Where the classes of each sample begin, and the end.
        producer_source: Messages from producers, counted within their sample; see
            :class:`dippm.features.physical.Messages`.
        producer_target: See above.
        producer_weight: See above.
        producer_offsets: Where the messages of each sample begin, and the end.
        consumer_source: Messages from consumers, likewise.
        consumer_target: See above.
        consumer_weight: See above.
        consumer_offsets: See above.
        parameters_m: Weights of each sample's graph, millions.
        kept: Position of each sample's label among those given.
        graph_hashes: Fingerprint of each sample's graph.

    Shapes:
        node_features: [N, F]; kernel_ms, launches, count: [N]; offsets: [S + 1]; parameters_m, kept,
        graph_hashes: [S].
    """

    node_features: Float32Array
    kernel_ms: Float32Array
    launches: Float32Array
    count: Float32Array
    node_offsets: IndexArray
    producer_source: IndexArray
    producer_target: IndexArray
    producer_weight: Float32Array
    producer_offsets: IndexArray
    consumer_source: IndexArray
    consumer_target: IndexArray
    consumer_weight: Float32Array
    consumer_offsets: IndexArray
    parameters_m: Float32Array
    kept: IndexArray
    graph_hashes: npt.NDArray[np.str_]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AdditiveSamples:
    """Samples with their labels.

    Args:
        labels: The label of each sample, with the hash of its graph.
        arrays: Arrays of all samples.
        measured_ms: Measured time of each sample, which predictions are tested on, [S].
        usable: Samples whose graph is of the model that was measured: names change their meaning between releases of
            a library, and the number of weights tells.
        rates: Sustained rates of the plain sum.
        key: Hash of all that made them.
        traced: Times of their operators where calls were traced, else None.
        layers: Samples that are no calls, but some layers of a model, measured by themselves: networks learn from them,
            and are not tested on them.
        learned_ms: The time of each sample that networks learn, [S], where it is another than the measured one: without
            what the host added to it.
    """

    labels: tuple[Label, ...]
    arrays: SampleArrays
    measured_ms: npt.NDArray[np.float64]
    usable: IndexArray
    rates: Rates
    key: str
    traced: TracedOperators | None = None
    layers: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    learned_ms: npt.NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def reading(self, columns: Sequence[str]) -> AdditiveSamples:
        """The same with some of the node features alone, in this order: what networks that were trained before read.

        Args:
            columns: Names of ``COLUMNS``.
        """
        if tuple(columns) == COLUMNS:
            return self
        features = self.arrays.node_features[:, [AT[name] for name in columns]]
        key = hashlib.sha256("\n".join([self.key, *columns]).encode()).hexdigest()[:16]
        return replace(self, arrays=replace(self.arrays, node_features=features), key=key)

    def plain_ms(self) -> npt.NDArray[np.float64]:
        """Kernel time of each sample by the plain sum, [S]."""
        own = self.arrays.kernel_ms.astype(np.float64) * self.arrays.count
        result: npt.NDArray[np.float64] = np.add.reduceat(own, self.arrays.node_offsets[:-1])
        return result


def build_additive_samples(
    labels: Sequence[Label],
    *,
    cache: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    parameters_m: Mapping[str, float],
    rates: Rates | None = None,
    device: DeviceSpec | None = None,
) -> AdditiveSamples:
    """Compute the features of labels, or read them back.

    Labels whose graph the cache lacks are left out.

    Args:
        labels: Labels with a latency.
        cache: Folder of the graph cache.
        folder: Where the arrays are kept.
        parameters_m: Weights of the measured models by architecture, millions, where they are known.
        rates: Sustained rates of the plain sum; :func:`shared_rates` where None are given.
        device: What all labels were measured on; where None is given, what the catalogue has under each label's name.

    Raises:
        UsageError: ``samples.empty`` where no label has a graph.
    """
    labels = [label for label in labels if label.measurement.latency_ms is not None]
    rates = rates or shared_rates()
    key = _key_of(labels, rates, device)
    path = Path(folder) / f"additive-{key}.npz"
    stored = read_arrays(path)
    if stored is None:
        stored = _compute(labels, GraphCache(cache), rates, device)
        write_arrays(path, stored)
    arrays = SampleArrays(**stored)
    kept = [
        replace(labels[position], graph_hash=str(graph_hash))
        for position, graph_hash in zip(arrays.kept.tolist(), arrays.graph_hashes, strict=True)
    ]
    published = np.array([parameters_m.get(label.recipe.architecture, np.nan) for label in kept])
    return AdditiveSamples(
        labels=tuple(kept),
        arrays=arrays,
        measured_ms=np.array([label.measurement.latency_ms for label in kept], dtype=np.float64),
        usable=np.flatnonzero(~_is_other_model(arrays.parameters_m, published)),
        rates=rates,
        key=key,
    )


def _is_other_model(own_m: Float32Array, published_m: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Whether graphs have other numbers of weights than the measured models; False where those are not known."""
    slack = np.maximum(_PARAMETER_SLACK * published_m, _PARAMETER_ROUNDING)
    result: npt.NDArray[np.bool_] = np.abs(own_m - published_m) > slack
    return result


def _key_of(labels: Sequence[Label], rates: Rates, device: DeviceSpec | None) -> str:
    made_of = [COLUMNS, _digest_of_rules(), asdict(rates), [label.key for label in labels]]
    if device is not None:
        made_of.append(asdict(device))
    return hashlib.sha256(json.dumps(made_of, separators=(",", ":")).encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def _digest_of_rules() -> str:
    """Hash of the code that makes features of graphs: what was made before it changed is made again."""
    folders = [Path(package.__path__[0]) for package in (dippm.costs, dippm.features, dippm.graph)]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    files += [Path(name) for name in (fast_norms.__file__, label_graphs.__file__, software_graphs.__file__, __file__)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()


def _compute(
    labels: Sequence[Label], cache: GraphCache, rates: Rates, device: DeviceSpec | None
) -> dict[str, npt.NDArray[Any]]:
    kernels = load_kernel_model()
    groups: dict[tuple[str, Mode, str, str, Optimizer | None], list[int]] = defaultdict(list)
    for position, label in enumerate(labels):
        conditions = label.configuration.conditions
        precision, runtime = conditions.precision.value, conditions.runtime.value
        groups[label.recipe.model_key, conditions.mode, precision, runtime, conditions.optimizer].append(position)
    parts: dict[str, list[npt.NDArray[Any]]] = defaultdict(list)
    order: list[int] = []
    for done, members in enumerate(groups.values()):
        if done % 200 == 0:
            _LOG.info("features of %d models of %d", done, len(groups))
        graphs: dict[str, PhysicalPlan] = {}
        for position in members:
            label = labels[position]
            cached = load_label_graph(label, cache)
            if cached is None:
                continue
            conditions = label.configuration.conditions
            try:
                kind = f"{cached.fingerprint} {label.measurement.software.framework[:8]}"
                plan = graphs.get(kind)
                if plan is None:
                    graph = graph_that_ran(cached.graph, label)
                    plan = PhysicalPlan.from_graph(graph, conditions.precision, conditions.runtime)
                    graphs[kind] = plan
                sample = plan.at(
                    [label.recipe.batch],
                    device=device or find_device(label.measurement.device),
                    conditions=conditions,
                    rates=rates,
                    kernels=kernels,
                )
            except DippmError as exc:
                _LOG.warning("left out %s: %s", label.recipe.architecture, exc)
                continue
            order.append(position)
            parts["node_features"].append(sample.node_features[0])
            parts["kernel_ms"].append(sample.kernel_ms[0])
            parts["launches"].append(plan.launches)
            parts["count"].append(plan.count)
            parts["parameters_m"].append(np.array([cached.graph.parameter_count / 1e6]))
            parts["graph_hashes"].append(np.array([cached.fingerprint]))
            for name, messages in (("producer", plan.producers), ("consumer", plan.consumers)):
                parts[f"{name}_source"].append(messages.source)
                parts[f"{name}_target"].append(messages.target)
                parts[f"{name}_weight"].append(messages.weight)
    if not order:
        raise UsageError("There is nothing to learn from: the cache has the graph of no label.", code="samples.empty")
    for name, of in (("node", "count"), ("producer", "producer_source"), ("consumer", "consumer_source")):
        parts[f"{name}_offsets"] = [to_offsets([len(part) for part in parts[of]])]
    parts["kept"] = [np.array(order, dtype=np.int64)]
    joined = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    for name in ("kernel_ms", "launches", "count", "parameters_m"):
        joined[name] = joined[name].astype(np.float32)
    return joined


def shared_rates() -> Rates:
    """Rates that networks start from: those of the plain sum at inference that hold on every architecture.

    What narrow rows, joined elements, windows of pooling and statistics of groups take, the networks learn; what planes
    take, their features add.
    """
    return replace(
        Calibration.read().rates,
        row_cycles=0.0,
        join_cycles=0.0,
        join_block_cycles=0.0,
        pool_element_cycles=0.0,
        pool_tap_cycles=0.0,
        plane_cycles=0.0,
        group_norm_reads=1.0,
        measured={},
    )


def graph_that_ran(graph: Graph, label: Label) -> Graph | TrainingGraph:
    """That of the label's software; a training step is a graph of its own."""
    conditions = label.configuration.conditions
    graph = as_measured(graph, label)
    if conditions.mode is Mode.INFERENCE:
        return graph
    settings = TrainingSettings(optimizer=conditions.optimizer or Optimizer.SGD, precision=conditions.precision)
    return make_training_graph(graph, settings)
