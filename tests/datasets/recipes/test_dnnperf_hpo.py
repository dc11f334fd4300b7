from __future__ import annotations

from collections import Counter

from dippm.datasets.recipes import dnnperf_hpo
from dippm.datasets.recipes.recipe import Recipe


def test_eleven_families_in_equal_numbers(collections: dict[str, tuple[Recipe, ...]]) -> None:
    counts = Counter(recipe.family for recipe in collections["dnnperf-hpo"])
    assert counts.keys() == dnnperf_hpo.FAMILIES.keys()
    assert len(counts) == 11
    assert max(counts.values()) - min(counts.values()) == 1
    assert counts.total() == 6000


def test_inputs_are_varied_and_networks_are_not(collections: dict[str, tuple[Recipe, ...]]) -> None:
    members = [recipe for recipe in collections["dnnperf-hpo"] if recipe.family == "alexnet"]
    assert {recipe.arguments["scale"] for recipe in members} == {1.0}
    shapes = {recipe.inputs.positional[0].shape for recipe in members}
    assert len(shapes) == len({recipe.model_key for recipe in members}) > 150
    assert len({recipe.batch for recipe in members}) > 50
