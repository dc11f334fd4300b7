"""The collections by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping

from dippm.datasets.recipes import (
    adaptation,
    dippm_small,
    dippm_zoo,
    dnnperf_hpo,
    dnnperf_nas,
    named,
    small,
    standard,
    transformers,
)
from dippm.datasets.recipes.recipe import Recipe
from dippm.errors import UsageError

__all__ = ["list_collections", "load_collection"]

_COLLECTIONS: Mapping[str, Callable[[int], tuple[Recipe, ...]]] = {
    "dippm-zoo": dippm_zoo.recipes,
    "dippm-unseen": dippm_zoo.unseen_recipes,
    "dnnperf-hpo": dnnperf_hpo.recipes,
    "dnnperf-nas": dnnperf_nas.recipes,
    "transformers": transformers.recipes,
    "timm-named": named.recipes,
    "dippm-small": dippm_small.recipes,
    "cpu-small": small.recipes,
    "cpu-standard": standard.recipes,
    "adapt-50": adaptation.recipes,
}


def list_collections() -> tuple[str, ...]:
    """Names of all collections."""
    return tuple(_COLLECTIONS)


def load_collection(name: str, seed: int = 0) -> tuple[Recipe, ...]:
    """Recipes of a collection in stratified order; nothing is built and no framework is imported.

    Args:
        name: One of :func:`list_collections`.
        seed: The same seed gives the same recipes in the same order, anywhere.

    Returns:
        The recipes; those of one model stand together, by ascending batch.

    Raises:
        UsageError: ``collection.unknown``.
    """
    draw = _COLLECTIONS.get(name)
    if draw is None:
        near = difflib.get_close_matches(name, _COLLECTIONS, n=1)
        raise UsageError(
            f"There is no collection of recipes named '{name}'.",
            code="collection.unknown",
            cure=f"{f'Did you mean {near[0]}? ' if near else ''}Known are {', '.join(_COLLECTIONS)}.",
        )
    return draw(seed)
