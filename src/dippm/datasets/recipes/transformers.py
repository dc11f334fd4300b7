"""Transformers by configuration, with sequences of 32 to 4096, and networks that answer for every pixel or place."""

from __future__ import annotations

from dippm.datasets.recipes.drawing import FamilyPlan, draw_collection
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.recipes.sampling import Limits, Reach
from dippm.datasets.recipes.spaces import dense_vision, language

__all__ = ["FAMILIES", "REACH", "recipes"]

FAMILIES = {
    "bert": FamilyPlan(sampler=language.sample_bert, models=80, recipes=240),
    "gpt2": FamilyPlan(sampler=language.sample_gpt2, models=80, recipes=240),
    "llama": FamilyPlan(sampler=language.sample_llama, models=80, recipes=240),
    "vit": FamilyPlan(sampler=language.sample_vit, models=53, recipes=160),
    "unet": FamilyPlan(sampler=dense_vision.sample_unet, models=53, recipes=160),
    "detector": FamilyPlan(sampler=dense_vision.sample_detector, models=53, recipes=160),
}

REACH = Reach(sizes=(128, 160, 192, 224, 256, 320, 384, 448, 512), width=(0.5, 1.5), depth=(0.25, 1.5))
_LIMITS = Limits(batches=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128), gmacs=1200, memory_gb=32)


def recipes(seed: int = 0) -> tuple[Recipe, ...]:
    """All 1,200 recipes in stratified order.

    Args:
        seed: Another seed gives other configurations, in the same numbers.
    """
    return draw_collection("transformers", FAMILIES, reach=REACH, limits=_LIMITS, seed=seed)
