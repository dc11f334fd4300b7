"""The DIPPM data set once more, for a core of a CPU."""

from __future__ import annotations

from collections import Counter

import pytest

from dippm.datasets.recipes import dippm_small
from dippm.datasets.recipes.dippm_zoo import FAMILIES


def test_it_has_the_counts_of_the_papers_table_and_as_many_models_as_the_zoo(collections) -> None:
    recipes = collections["dippm-small"]
    assert Counter(recipe.family for recipe in recipes) == {family: plan.recipes for family, plan in FAMILIES.items()}
    models = {recipe.model_key: recipe.family for recipe in recipes}
    assert Counter(models.values()) == {family: plan.models for family, plan in FAMILIES.items()}


def test_its_models_are_small_and_of_many_sizes(collections) -> None:
    recipes = collections["dippm-small"]
    assert dippm_small.REACH.is_small
    sides = Counter(entry.shape[-1] for recipe in recipes for entry in recipe.inputs.positional)
    assert set(dippm_small.REACH.sizes) <= set(sides)
    assert max(sides) == max(dippm_small.REACH.sizes)
    assert {recipe.batch for recipe in recipes} == {1, 2, 3, 4, 6, 8, 12, 16}


@pytest.mark.parametrize("length", [300, 1000, 5000])
def test_any_prefix_has_all_families_in_proportion_to_their_models(collections, length: int) -> None:
    models = sum(plan.models for plan in FAMILIES.values())
    found = Counter(recipe.family for recipe in collections["dippm-small"][:length])
    for family, plan in FAMILIES.items():
        assert found[family] / length == pytest.approx(plan.models / models, abs=0.03), family
