"""What ``dippm fits`` says of pairs of batches at the border of a card's memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from dippm.costs.conditions import Mode
from dippm.costs.software import Software
from dippm.datasets.fast_norms import with_fast_norms
from dippm.datasets.graph_cache import GraphCache
from dippm.devices import find_device
from dippm.errors import UsageError
from dippm.evaluation.border_pairs import Border
from dippm.evaluation.fit_scores import PairVerdict
from dippm.graph import Graph
from dippm.placement.fit import FitVerdict, fits
from dippm.predictors.physics import PhysicsPredictor

__all__ = ["shipped_verdicts"]


def shipped_verdicts(borders: Sequence[Border], cache: GraphCache, *, software: Software) -> list[PairVerdict]:
    """Ask the shipped predictor whether each batch fits, as ``dippm fits`` does.

    Args:
        borders: The pairs.
        cache: Graphs by recipe; it holds those of the pairs.
        software: What the runs are said to be made with.

    Returns:
        A verdict for each pair, in their order.

    Raises:
        UsageError: ``graph_cache.missing`` where a graph is not in the cache.
    """
    verdicts: dict[int, PairVerdict] = {}
    order = sorted(range(len(borders)), key=lambda position: borders[position].label.recipe.model_key)
    for _, positions in groupby(order, key=lambda position: borders[position].label.recipe.model_key):
        # One graph serves every batch of most models, and the predictor keeps what it has laid out for it.
        graph: Graph | None = None
        for position in positions:
            border = borders[position]
            of_batches = []
            for batch in (border.label.recipe.batch, border.failed_batch):
                if graph is None or graph.fixed_batch is not None:
                    graph = _load(border, cache, batch)
                of_batches.append(_judge(graph, border, batch, software))
            verdicts[position] = PairVerdict(fitted=of_batches[0], failed=of_batches[1])
    return [verdicts[position] for position in range(len(borders))]


def _load(border: Border, cache: GraphCache, batch: int) -> Graph:
    cached = cache.load(border.label.recipe.model_key, batch=batch)
    if cached is None:
        raise UsageError(f"The graph of {border.model} is not in the cache.", code="graph_cache.missing")
    is_training = border.label.configuration.conditions.mode is Mode.TRAINING
    return cached.graph if is_training else with_fast_norms(cached.graph, border.model)


def _judge(graph: Graph, border: Border, batch: int, software: Software) -> FitVerdict:
    device = find_device(border.label.measurement.device)
    (prediction,) = PhysicsPredictor.load().predict(
        graph,
        batches=[batch],
        devices=[device],
        conditions=border.label.configuration.conditions,
        software=software,
    )
    return fits(prediction.intervals["memory_mb"], device.capacity_mb).verdict
