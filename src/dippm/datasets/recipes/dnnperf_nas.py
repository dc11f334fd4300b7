"""DNNPerf's second kind of data: skeletons of searched networks with random operations and hyperparameters."""

from __future__ import annotations

from dippm.datasets.recipes.drawing import FamilyPlan, draw_collection
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.recipes.sampling import Limits, Reach
from dippm.datasets.recipes.spaces import cells

__all__ = ["FAMILIES", "REACH", "recipes"]

FAMILIES = {
    "cells": FamilyPlan(sampler=cells.sample_cells, models=400, recipes=1200),
    "chain": FamilyPlan(sampler=cells.sample_chain, models=266, recipes=800),
}

REACH = Reach(sizes=(32, 48, 64, 96, 128, 160, 224), width=(0.5, 1.5), depth=(1.0, 1.0))
_LIMITS = Limits(batches=tuple(range(1, 129)), gmacs=1000, memory_gb=32)


def recipes(seed: int = 0) -> tuple[Recipe, ...]:
    """All 2,000 recipes in stratified order.

    Args:
        seed: Another seed gives other cells and chains, in the same numbers.
    """
    return draw_collection("dnnperf-nas", FAMILIES, reach=REACH, limits=_LIMITS, seed=seed)
