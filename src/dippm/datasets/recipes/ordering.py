"""The order in which a collection is measured: any prefix of it is a balanced sample.

It goes in rounds: in the first every model comes with one of its batch sizes, in the next with another, so that a
short campaign meets many models rather than many batches of a few. Families are interleaved in proportion to their
number of models; within a family the models are spread over size, and which of its batches a model begins with is
spread over small and large ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.recipes.sampling import seeded

__all__ = ["interleave", "spread"]

T = TypeVar("T")
_GOLDEN = 0.6180339887498949
# Sizes go by the golden ratio: batches need another irrational step, or large models would always meet large batches.
_BATCH_STEP = 0.41421356237309515


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
        All recipes, round by round. In each round a model comes once at most; among the first k models of the first,
        every family has its share of k, give or take about one.
    """
    slots: list[tuple[float, str, list[Recipe]]] = []
    for family, models in families.items():
        start = seeded(collection, family, seed, "order").random()
        first_batch = seeded(collection, family, seed, "batches").random()
        for place, recipes in enumerate(spread(models, start=start)):
            batches = _take_turns(recipes, start=(first_batch + place * _BATCH_STEP) % 1.0)
            slots.append(((place + 0.5) / len(models), family, batches))
    slots.sort(key=lambda slot: slot[:2])
    rounds = max((len(batches) for _, _, batches in slots), default=0)
    return tuple(batches[turn] for turn in range(rounds) for _, _, batches in slots if turn < len(batches))


def _take_turns(recipes: Sequence[Recipe], *, start: float) -> list[Recipe]:
    """Order the recipes of a model: evenly spread starts give every batch each place in the order equally often."""
    ranked = sorted(recipes, key=lambda recipe: recipe.batch)
    first = int(start * len(ranked))
    turned = ranked[first:] + ranked[:first]
    return spread([(recipe, float(place)) for place, recipe in enumerate(turned)])
