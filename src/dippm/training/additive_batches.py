"""Whether the shipped additive predictor ever gets cheaper with a larger batch."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dippm.costs.conditions import Mode, Optimizer
from dippm.costs.training_step.training_graph import TrainingGraph, TrainingSettings, make_training_graph
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.software_graphs import as_measured
from dippm.devices import find_device
from dippm.graph import Graph
from dippm.predictors.additive import AdditivePredictor
from dippm.training.additive_samples import AdditiveSamples

__all__ = ["BatchCheck", "check_doubling"]

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_LISTED = 10
_CLEAR = 0.99


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCheck:
    """What doubling does.

    Args:
        batches: Batches, each twice the one before.
        models: Models looked at.
        pairs: Doublings.
        lower: Those that lower the time.
        clearly_lower: Those that lower it by more than 1 %.
        worst: Model, batch, doubled batch and change of the time in percent of the largest falls.
    """

    batches: tuple[int, ...]
    models: int
    pairs: int
    lower: int
    clearly_lower: int
    worst: tuple[tuple[str, int, int, float], ...]


def check_doubling(samples: AdditiveSamples, *, cache: Path, models: int, seed: int = 0) -> BatchCheck:
    """Double the batch of models drawn at random, from 1 to 512.

    Args:
        samples: Whose models.
        cache: Folder of the graph cache.
        models: How many at most.
        seed: Seed of the draw.
    """
    predictor, graphs = AdditivePredictor.load(), GraphCache(cache)
    labels = {samples.labels[i].recipe.model_key: samples.labels[i] for i in samples.usable}
    drawn = random.Random(seed).sample(sorted(labels), min(models, len(labels)))  # noqa: S311 - not a secret
    seen, falls, pairs = 0, [], 0
    for key in drawn:
        label = labels[key]
        cached = graphs.load(key, batch=label.recipe.batch)
        if cached is None or cached.graph.fixed_batch is not None:
            continue
        conditions = label.configuration.conditions
        graph: Graph | TrainingGraph = as_measured(cached.graph, label.measurement.software.framework)
        if conditions.mode is Mode.TRAINING and isinstance(graph, Graph):
            settings = TrainingSettings(optimizer=conditions.optimizer or Optimizer.SGD, precision=conditions.precision)
            graph = make_training_graph(graph, settings)
        times = predictor.predict_ms(graph, _BATCHES, find_device(label.measurement.device), conditions)
        ratio = times[1:] / times[:-1]
        seen += 1
        pairs += len(ratio)
        falls += [
            (float(ratio[place]), label.recipe.architecture.removeprefix("zoo:timm:"), int(place))
            for place in np.flatnonzero(ratio < 1.0)
        ]
    falls.sort()
    return BatchCheck(
        batches=_BATCHES,
        models=seen,
        pairs=pairs,
        lower=len(falls),
        clearly_lower=sum(ratio < _CLEAR for ratio, _, _ in falls),
        worst=tuple(
            (name, _BATCHES[place], _BATCHES[place + 1], 100.0 * (ratio - 1.0))
            for ratio, name, place in falls[:_LISTED]
        ),
    )
