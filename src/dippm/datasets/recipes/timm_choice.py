"""Models of timm that were chosen one by one, as recipes in stratified order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from dippm.datasets.recipes.ordering import interleave
from dippm.datasets.recipes.recipe import Recipe
from dippm.frontends.inputs import InputEntry, InputShapes

__all__ = ["order_timm_models"]


def order_timm_models(chosen: Iterable[tuple[str, int, int, str]], *, collection: str, seed: int) -> tuple[Recipe, ...]:
    """The recipes of models that timm has by name.

    Args:
        chosen: Model, pixels, batch and family of each; a model may come with several batches.
        collection: The set that they belong to.
        seed: Another seed gives another order of the same recipes.
    """
    families: dict[str, dict[str, list[Recipe]]] = defaultdict(lambda: defaultdict(list))
    for name, pixels, batch, family in chosen:
        recipe = Recipe(
            collection=collection,
            family=family,
            architecture=f"zoo:timm:{name}",
            inputs=InputShapes(positional=(InputEntry(shape=(3, pixels, pixels)),)),
            batch=batch,
        )
        families[family][name].append(recipe)
    models = {
        family: [(tuple(own), float(max(recipe.batch for recipe in own))) for own in members.values()]
        for family, members in families.items()
    }
    return interleave(models, collection=collection, seed=seed)
