from __future__ import annotations

from collections.abc import Callable

import pytest

from dippm.datasets.recipes.building import build
from dippm.datasets.recipes.collections import load_collection
from dippm.datasets.recipes.recipe import Recipe


def test_models_that_everyone_knows_at_one_sample_and_at_several(
    collections, by_round: Callable[[tuple[Recipe, ...]], list[list[Recipe]]]
) -> None:
    recipes = collections["cpu-standard"]
    models = {recipe.architecture for recipe in recipes}
    assert {"zoo:timm:resnet18", "zoo:timm:vit_tiny_patch16_224", "zoo:torchvision:vgg11"} <= models
    batches = [recipe.batch for recipe in recipes]
    assert batches.count(1) == len(models)
    assert max(batches) >= 16
    assert {recipe.inputs.positional[0].shape for recipe in recipes} == {(3, 224, 224)}
    assert {recipe.key for recipe in load_collection("cpu-standard", seed=1)} == {recipe.key for recipe in recipes}
    # A model comes again only when all others have come once.
    assert len(by_round(recipes)[0]) == len(models)


@pytest.mark.slow
def test_all_of_them_can_be_built(collections) -> None:
    for recipe in {recipe.model_key: recipe for recipe in collections["cpu-standard"]}.values():
        module, _ = build(recipe)
        assert sum(weight.numel() for weight in module.parameters()) > 1e6
