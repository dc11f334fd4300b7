"""The ten families of the DIPPM data set with the counts of its Table 2, in small: a core of a CPU runs them all."""

from __future__ import annotations

from dippm.datasets.recipes.dippm_zoo import FAMILIES
from dippm.datasets.recipes.drawing import draw_collection
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.recipes.sampling import Limits, Reach

__all__ = ["REACH", "recipes"]

REACH = Reach(sizes=(64, 80, 96, 112, 128), width=(0.125, 0.5), depth=(0.15, 0.6))
_LIMITS = Limits(batches=(1, 2, 3, 4, 6, 8, 12, 16), gmacs=0.25, memory_gb=0.3)


def recipes(seed: int = 0) -> tuple[Recipe, ...]:
    """All 10,508 recipes in stratified order.

    Args:
        seed: Another seed gives other models and batches, in the same numbers.
    """
    return draw_collection("dippm-small", FAMILIES, reach=REACH, limits=_LIMITS, seed=seed)
