from __future__ import annotations

from collections import Counter

from dippm.datasets.recipes import dnnperf_nas
from dippm.datasets.recipes.recipe import Recipe


def test_cells_and_chains_in_their_numbers(collections: dict[str, tuple[Recipe, ...]]) -> None:
    recipes = collections["dnnperf-nas"]
    assert Counter(recipe.family for recipe in recipes) == {"cells": 1200, "chain": 800}
    models = Counter({recipe.model_key: recipe.family for recipe in recipes}.values())
    assert models == {family: plan.models for family, plan in dnnperf_nas.FAMILIES.items()}


def test_skeletons_differ_and_not_only_their_inputs(collections: dict[str, tuple[Recipe, ...]]) -> None:
    recipes = collections["dnnperf-nas"]
    assert len({recipe.arguments["normal"] for recipe in recipes if recipe.family == "cells"}) >= 395
    assert len({recipe.arguments["layers"] for recipe in recipes if recipe.family == "chain"}) >= 260
