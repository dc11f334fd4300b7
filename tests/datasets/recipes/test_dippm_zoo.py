"""The ten families of the paper, and the one that is held out."""

from __future__ import annotations

from collections import Counter

import pytest

from dippm.datasets.recipes.collections import load_collection

# Table 2 of the DIPPM paper.
TABLE_2 = {
    "efficientnet": 1729,
    "mnasnet": 1001,
    "mobilenet": 1591,
    "resnet": 1152,
    "vgg": 1536,
    "swin": 547,
    "vit": 520,
    "densenet": 768,
    "visformer": 768,
    "poolformer": 896,
}


def test_the_zoo_has_the_counts_of_the_papers_table_to_the_unit(collections) -> None:
    assert Counter(recipe.family for recipe in collections["dippm-zoo"]) == TABLE_2
    assert sum(TABLE_2.values()) == 10508


def test_the_held_out_family_is_in_no_other_collection(collections) -> None:
    for name, recipes in collections.items():
        is_held_out = {recipe.architecture == "timm:convnext" for recipe in recipes}
        assert is_held_out == {name == "dippm-unseen"}


@pytest.mark.parametrize("length", [250, 500, 1000, 3000, 6000])
def test_any_prefix_of_the_zoo_has_all_batches_in_proportion(collections, length: int) -> None:
    recipes = collections["dippm-zoo"]
    for low, high in ((1, 3), (4, 12), (16, 48), (64, 128)):
        whole = sum(low <= recipe.batch <= high for recipe in recipes) / len(recipes)
        found = sum(low <= recipe.batch <= high for recipe in recipes[:length]) / length
        # Two standard errors of a sample drawn at random.
        assert abs(found - whole) <= 2 * (whole * (1 - whole) / length) ** 0.5, (low, high)


def test_zoo_families_have_many_models_and_many_batches(collections) -> None:
    for family in TABLE_2:
        members = [recipe for recipe in collections["dippm-zoo"] if recipe.family == family]
        assert len({recipe.model_key for recipe in members}) >= 150, family
        assert {recipe.batch for recipe in members} >= {1, 2, 8, 32, 64, 128}, family
        assert {recipe.inputs.positional[0].shape[-1] for recipe in members} >= {128, 224, 384} or family == "vit"


def test_another_seed_gives_other_recipes_in_the_same_numbers(collections) -> None:
    other = load_collection("dippm-zoo", seed=1)
    assert Counter(recipe.family for recipe in other) == TABLE_2
    mine = {recipe.key for recipe in collections["dippm-zoo"]}
    assert len(mine & {recipe.key for recipe in other}) < 0.05 * len(mine)
