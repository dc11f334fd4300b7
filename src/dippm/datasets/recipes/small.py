"""Models so small that two cores of a CPU measure one in about a second, training included."""

from __future__ import annotations

from dippm.datasets.recipes.drawing import FamilyPlan, draw_collection
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.recipes.sampling import Limits, Reach, Sampler
from dippm.datasets.recipes.spaces import (
    attention,
    cells,
    convolutional,
    dense_vision,
    hpo,
    language,
    mobile,
    recurrent,
)

__all__ = ["FAMILIES", "REACH", "recipes"]

_SAMPLERS: dict[str, Sampler] = {
    "efficientnet": mobile.sample_efficientnet,
    "mnasnet": mobile.sample_mnasnet,
    "mobilenet": mobile.sample_mobilenet,
    "resnet": convolutional.sample_resnet,
    "vgg": convolutional.sample_vgg,
    "swin": attention.sample_swin,
    "vit": attention.sample_vit,
    "densenet": convolutional.sample_densenet,
    "visformer": attention.sample_visformer,
    "poolformer": attention.sample_poolformer,
    "lenet": hpo.sample_lenet,
    "alexnet": hpo.sample_alexnet,
    "overfeat": hpo.sample_overfeat,
    "inception": hpo.sample_inception_v1,
    "resnet-v2": hpo.sample_resnet_v2,
    "rnn": recurrent.sample_rnn,
    "lstm": recurrent.sample_lstm,
    "gru": recurrent.sample_gru,
    "cells": cells.sample_cells,
    "chain": cells.sample_chain,
    "bert": language.sample_bert,
    "gpt2": language.sample_gpt2,
    "llama": language.sample_llama,
    "unet": dense_vision.sample_unet,
    "detector": dense_vision.sample_detector,
}
FAMILIES = {family: FamilyPlan(sampler=sampler, models=6, recipes=20) for family, sampler in _SAMPLERS.items()}

REACH = Reach(sizes=(64, 96), width=(0.125, 0.375), depth=(0.1, 0.4))
_LIMITS = Limits(batches=(1, 2, 3, 4, 6, 8), gmacs=0.1, memory_gb=0.15)


def recipes(seed: int = 0) -> tuple[Recipe, ...]:
    """All 500 recipes in stratified order.

    Args:
        seed: Another seed gives other models and batches, in the same numbers.
    """
    return draw_collection("cpu-small", FAMILIES, reach=REACH, limits=_LIMITS, seed=seed)
