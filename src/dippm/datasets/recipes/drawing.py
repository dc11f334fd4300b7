"""Draws a whole collection: every family by its plan, then one stratified order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dippm.datasets.recipes.ordering import interleave
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.recipes.sampling import Limits, Reach, Sampler, draw_family

__all__ = ["FamilyPlan", "draw_collection", "share_equally"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyPlan:
    """How many members of a family a collection has.

    Args:
        sampler: Draws one model.
        models: Number of different models.
        recipes: Number of recipes: each model at several batch sizes.
    """

    sampler: Sampler
    models: int
    recipes: int


def share_equally(samplers: Mapping[str, Sampler], *, recipes: int, batches_per_model: int) -> dict[str, FamilyPlan]:
    """Plan so many recipes in all, equally many in each family to within one."""
    each, rest = divmod(recipes, len(samplers))
    return {
        family: FamilyPlan(sampler=sampler, models=each // batches_per_model, recipes=each + (1 if place < rest else 0))
        for place, (family, sampler) in enumerate(samplers.items())
    }


def draw_collection(
    name: str, plans: Mapping[str, FamilyPlan], *, reach: Reach, limits: Limits, seed: int
) -> tuple[Recipe, ...]:
    """Draw a collection.

    Args:
        name: Its name.
        plans: Its families.
        reach: How large models may get.
        limits: Batch sizes, and what a call may cost.
        seed: Another seed gives other models and batches, in the same numbers.

    Returns:
        All recipes, the batch sizes of a model next to each other, in an order of which any prefix is balanced.
    """
    drawn = {
        family: draw_family(
            plan.sampler,
            collection=name,
            family=family,
            models=plan.models,
            recipes=plan.recipes,
            reach=reach,
            limits=limits,
            seed=seed,
        )
        for family, plan in plans.items()
    }
    return interleave(drawn, collection=name, seed=seed)
