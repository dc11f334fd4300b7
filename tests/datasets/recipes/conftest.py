"""The collections, drawn once, and how their order is read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dippm.datasets.recipes.collections import list_collections, load_collection
from dippm.datasets.recipes.recipe import Recipe


@pytest.fixture(name="collections", scope="session")
def _collections() -> dict[str, tuple[Recipe, ...]]:
    return {name: load_collection(name) for name in list_collections()}


@pytest.fixture(scope="session")
def by_round() -> Callable[[tuple[Recipe, ...]], list[list[Recipe]]]:
    """The order cut where a model comes again."""

    def cut(recipes: tuple[Recipe, ...]) -> list[list[Recipe]]:
        rounds: list[list[Recipe]] = []
        seen: set[str] = set()
        for recipe in recipes:
            if recipe.model_key in seen or not rounds:
                rounds.append([])
                seen = set()
            seen.add(recipe.model_key)
            rounds[-1].append(recipe)
        return rounds

    return cut
