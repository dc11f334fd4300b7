"""The graphs of labels: a model in training has operators, dropout for one, that it does not have at inference."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dippm.costs.conditions import Mode
from dippm.datasets.graph_cache import CachedGraph, GraphCache, GraphFailure, build_graphs
from dippm.datasets.store.label import Label

__all__ = ["build_label_graphs", "load_label_graph"]


def build_label_graphs(
    labels: Iterable[Label],
    cache: GraphCache,
    *,
    jobs: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[GraphFailure]:
    """Fill the cache with the graphs of all labels that it lacks, in the mode that each was measured in.

    Args:
        labels: Labels.
        cache: Where the graphs go.
        jobs: Processes that read models at the same time.
        on_progress: Called with the number of models done and their total, once for each mode and model.

    Returns:
        The models that cannot be read.

    Raises:
        UsageError: As :func:`dippm.datasets.graph_cache.build_graphs`.
        DippmError: As there.
    """
    labels = list(labels)
    failures = []
    for mode in Mode:
        recipes = [label.recipe for label in labels if label.configuration.conditions.mode is mode]
        if recipes:
            failures += build_graphs(recipes, cache.of(mode), jobs=jobs, on_progress=on_progress)
    return failures


def load_label_graph(label: Label, cache: GraphCache) -> CachedGraph | None:
    """The graph of a label in its mode that holds for its batch, None where there is none."""
    return cache.of(label.configuration.conditions.mode).load(label.recipe.model_key, batch=label.recipe.batch)
