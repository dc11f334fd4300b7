from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from dippm.datasets.recipes.collections import load_collection
from dippm.datasets.recipes.recipe import Recipe


def test_what_to_adapt_by_has_batches_of_all_sizes_and_models_of_many_families(
    collections, by_round: Callable[[tuple[Recipe, ...]], list[list[Recipe]]]
) -> None:
    recipes = collections["adapt-50"]
    assert len({recipe.family for recipe in recipes}) >= 30
    batches = Counter(recipe.batch for recipe in recipes)
    assert batches[1] >= 5
    assert min(batches[8], batches[32], batches[64], batches[128]) >= 5
    assert {recipe.key for recipe in load_collection("adapt-50", seed=1)} == {recipe.key for recipe in recipes}
    # A model comes again only when all others have come once.
    first = by_round(recipes)[0]
    assert len(first) == len({recipe.model_key for recipe in recipes})
