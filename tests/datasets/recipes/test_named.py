from __future__ import annotations

from collections import Counter

from dippm.datasets.recipes.collections import load_collection


def test_named_models_are_of_most_files_of_timm_with_batches_of_all_sizes(collections) -> None:
    recipes = collections["timm-named"]
    families = Counter(recipe.family for recipe in recipes)
    assert len(families) >= 85
    assert max(families.values()) <= 16
    assert "convnext" not in families  # held out of all collections but its own
    batches = Counter(recipe.batch for recipe in recipes)
    assert min(batches) == 1
    assert max(batches) == 128
    assert max(batches.values()) < 0.15 * len(recipes)
    # Any prefix has members of many families.
    assert len({recipe.family for recipe in recipes[:100]}) >= 60
    assert {recipe.key for recipe in load_collection("timm-named", seed=1)} == {recipe.key for recipe in recipes}
