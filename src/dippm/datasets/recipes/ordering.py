"""The order in which a collection is measured: any prefix of it is a balanced sample.

The unit is a model with all its batch sizes, because one built model serves them all. Families are interleaved in
proportion to their number of models; within a family the models are spread over size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.recipes.sampling import seeded

__all__ = ["interleave", "spread"]

T = TypeVar("T")
_GOLDEN = 0.6180339887498949


def spread(items: Sequence[tuple[T, float]], *, start: float = 0.0) -> list[T]:
    """Order items so that every prefix covers the whole range of their values.

    The items are ranked, and the ranks are visited as a golden-ratio sequence visits the unit interval, which leaves
    no large gap at any length.

    Args:
        items: Items with the value that they are ranked by.
        start: Where in the range to begin, 0 to 1.

    Returns:
        The items, each once.
    """
    ranked = [item for item, _ in sorted(items, key=lambda pair: pair[1])]
    steps = sorted(range(len(ranked)), key=lambda step: (start + step * _GOLDEN) % 1.0)
    # The step that lands in the rank-th place of the interval visits that rank.
    rank_of_step = [0] * len(ranked)
    for rank, step in enumerate(steps):
        rank_of_step[step] = rank
    return [ranked[rank] for rank in rank_of_step]


def interleave(
    families: Mapping[str, Sequence[tuple[tuple[Recipe, ...], float]]], *, collection: str, seed: int
) -> tuple[Recipe, ...]:
    """Bring the models of several families into one stratified order.

    Args:
        families: For each family its models: the recipes of each, and its cost.
        collection: Name of the collection, part of the seed.
        seed: Another seed begins elsewhere in each family's range of sizes.

    Returns:
        All recipes; those of one model stand together. Among the first k models, every family has its share of k,
        give or take about one.
    """
    slots: list[tuple[float, str, tuple[Recipe, ...]]] = []
    for family, models in families.items():
        start = seeded(collection, family, seed, "order").random()
        for place, recipes in enumerate(spread(models, start=start)):
            slots.append(((place + 0.5) / len(models), family, recipes))
    slots.sort(key=lambda slot: slot[:2])
    return tuple(recipe for _, _, recipes in slots for recipe in recipes)
