"""The ten families of the DIPPM data set with the counts of its Table 2, and an eleventh that is held out."""

from __future__ import annotations

from collections.abc import Mapping

from dippm.datasets.recipes.drawing import FamilyPlan, draw_collection
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.recipes.sampling import Limits, Reach
from dippm.datasets.recipes.spaces import attention, convolutional, mobile

__all__ = ["FAMILIES", "REACH", "UNSEEN", "recipes", "unseen_recipes"]

FAMILIES: Mapping[str, FamilyPlan] = {
    "efficientnet": FamilyPlan(sampler=mobile.sample_efficientnet, models=320, recipes=1729),
    "mnasnet": FamilyPlan(sampler=mobile.sample_mnasnet, models=190, recipes=1001),
    "mobilenet": FamilyPlan(sampler=mobile.sample_mobilenet, models=300, recipes=1591),
    "resnet": FamilyPlan(sampler=convolutional.sample_resnet, models=216, recipes=1152),
    "vgg": FamilyPlan(sampler=convolutional.sample_vgg, models=288, recipes=1536),
    "swin": FamilyPlan(sampler=attention.sample_swin, models=160, recipes=547),
    "vit": FamilyPlan(sampler=attention.sample_vit, models=155, recipes=520),
    "densenet": FamilyPlan(sampler=convolutional.sample_densenet, models=160, recipes=768),
    "visformer": FamilyPlan(sampler=attention.sample_visformer, models=160, recipes=768),
    "poolformer": FamilyPlan(sampler=attention.sample_poolformer, models=172, recipes=896),
}
"""Numbers of recipes as in the paper; numbers of models, the project's own choice."""

UNSEEN: Mapping[str, FamilyPlan] = {
    "convnext": FamilyPlan(sampler=convolutional.sample_convnext, models=64, recipes=256)
}
"""Kept out of training, to see what a predictor makes of a family that it never met."""

REACH = Reach(sizes=(128, 160, 192, 224, 256, 288, 320, 384), width=(0.5, 1.5), depth=(0.5, 1.5))
_LIMITS = Limits(batches=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128), gmacs=1000, memory_gb=32)


def recipes(seed: int = 0) -> tuple[Recipe, ...]:
    """All 10,508 recipes in stratified order.

    Args:
        seed: Another seed gives other models and batches, in the same numbers.
    """
    return draw_collection("dippm-zoo", FAMILIES, reach=REACH, limits=_LIMITS, seed=seed)


def unseen_recipes(seed: int = 0) -> tuple[Recipe, ...]:
    """The recipes of the held-out family, see :func:`recipes`."""
    return draw_collection("dippm-unseen", UNSEEN, reach=REACH, limits=_LIMITS, seed=seed)
