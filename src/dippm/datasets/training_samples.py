"""Training steps and labels as a few large arrays: what DNNPerf's networks are trained on.

As :mod:`dippm.datasets.graph_samples`, with the graph of a whole training step, and values of its edges.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Mode, Optimizer
from dippm.costs.training_step.training_graph import TrainingSettings, make_training_graph
from dippm.datasets.graph_cache import CachedGraph
from dippm.datasets.graph_samples import FloatArray, OnProgress, SampleTable, build_table, to_offsets
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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrainingSamples(SampleTable):
    """Samples as arrays; the costs are those of the whole step, the graph that is hashed the forward one.

    The latency of a training step is its step time.

    Args:
        operators: Operator of all nodes of all samples, places in :data:`dippm.features.dnnperf.OPERATORS`.
        node_values: Their values, the columns of :data:`dippm.features.dnnperf.NODE_COLUMNS`.
        edge_index: Edges as (source, target), counted within their sample.
        edge_values: Their values, the columns of :data:`dippm.features.dnnperf.EDGE_COLUMNS`.

    Shapes:
        operators: [N]; node_values: [N, V]; edge_index: [2, E]; edge_values: [E, W].
    """

    operators: npt.NDArray[np.int16]
    node_values: npt.NDArray[np.float32]
    edge_index: npt.NDArray[np.int32]
    edge_values: npt.NDArray[np.float32]


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
    return build_table(
        TrainingSamples,
        labels,
        folder,
        name="training-",
        made_of=[
            _FORMAT,
            [kind.value for kind in OPERATORS],
            NODE_COLUMNS,
            EDGE_COLUMNS,
            COST_COLUMNS,
            sorted({str([label.measurement.device, *_settings_of(label)]) for label in labels}),
        ],
        compute=_compute,
        stack=_stack,
        jobs=jobs,
        on_progress=on_progress,
    )


def _settings_of(label: Label) -> tuple[str, str]:
    conditions = label.configuration.conditions
    return (conditions.optimizer or Optimizer.SGD).value, conditions.precision.value


def _compute(cached: CachedGraph, labels: Sequence[Label]) -> Iterable[tuple[DnnperfSample, FloatArray]]:
    conditions = labels[0].configuration.conditions
    training = make_training_graph(
        cached.graph,
        TrainingSettings(optimizer=conditions.optimizer or Optimizer.SGD, precision=conditions.precision),
    )
    batches = [label.recipe.batch for label in labels]
    samples = compute_dnnperf_features(training, batches, _known_device(labels[0].measurement.device))
    return zip(samples, compute_cost_sums(training.graph, batches, precision=training.precision), strict=True)


def _stack(samples: Sequence[DnnperfSample]) -> dict[str, npt.NDArray[Any]]:
    return {
        "operators": np.concatenate([sample.operators for sample in samples]),
        "node_values": np.concatenate([sample.node_values for sample in samples]),
        "edge_index": np.concatenate([sample.edge_index for sample in samples], axis=1).astype(np.int32),
        "edge_values": np.concatenate([sample.edge_values for sample in samples]),
        "node_offsets": to_offsets([len(sample.operators) for sample in samples]),
        "edge_offsets": to_offsets([sample.edge_index.shape[1] for sample in samples]),
    }


def _known_device(name: str) -> DeviceSpec | None:
    """The device's data sheet, None for one that the catalogue does not have, such as a CPU."""
    try:
        return find_device(name)
    except DippmError:
        return None
