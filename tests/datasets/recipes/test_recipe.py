from __future__ import annotations

import json
from typing import Any

import pytest

from dippm.datasets.recipes.collections import list_collections
from dippm.datasets.recipes.recipe import Recipe
from dippm.errors import UsageError
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.graph import DType


@pytest.mark.parametrize("name", [name for name in list_collections() if name != "adapt-50"])
def test_recipes_survive_json(collections, name: str) -> None:
    for recipe in collections[name][::37]:
        again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
        assert (again.key, again.to_dict()) == (recipe.key, recipe.to_dict())


def make(**changes: Any) -> Recipe:
    values = {
        "collection": "test",
        "family": "resnet",
        "architecture": "timm:resnet",
        "arguments": {"block": "basic", "layers": (2, 2, 2, 2), "avg_down": True, "ratio": 0.5},
        "inputs": InputShapes(positional=(InputEntry(shape=(3, 64, 64)),)),
        "batch": 8,
    }
    return Recipe(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "same_key", "same_model"),
    [
        ({"collection": "other", "family": "vgg"}, True, True),
        ({"batch": 9}, False, True),
        ({"arguments": {"ratio": 0.5, "avg_down": True, "layers": (2, 2, 2, 2), "block": "basic"}}, True, True),
        ({"arguments": {}}, False, False),
        ({"architecture": "timm:vgg"}, False, False),
        ({"inputs": InputShapes(positional=(InputEntry(shape=(3, 64, 65)),))}, False, False),
        ({"inputs": InputShapes(positional=(InputEntry(shape=(3, 64, 64), dtype=DType.INT64),))}, False, False),
    ],
)
def test_a_key_is_of_all_that_decides_what_is_run(changes: dict[str, Any], same_key: bool, same_model: bool) -> None:
    recipe, other = make(), make(**changes)
    assert (recipe.key == other.key, recipe.model_key == other.model_key) == (same_key, same_model)
    assert len(recipe.key) == len(recipe.model_key) == 16


def test_a_family_has_one_name_in_all_sets() -> None:
    def lineage(family: str) -> str:
        inputs = InputShapes(positional=(InputEntry(shape=(3, 32, 32)),))
        return Recipe(collection="set", family=family, architecture="timm:vit", inputs=inputs, batch=1).lineage

    assert [lineage(family) for family in ("vision_transformer", "vit", "swin_transformer", "resnet")] == [
        "vit",
        "vit",
        "swin",
        "resnet",
    ]


def test_keys_stay_what_they_are() -> None:
    """Stores name their rows by them."""
    assert (make().model_key, make().key) == ("cc941ff0fd5d2013", "96388ff87d380f7b")


def test_named_inputs_survive() -> None:
    recipe = make(inputs=InputShapes(named={"input_ids": InputEntry(shape=(128,), dtype=DType.INT64)}))
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))).inputs == recipe.inputs


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": "many"},
        {"inputs": 3},
        {"inputs": [[[3, 64, 64], "float12"]]},
        {"inputs": [[3, 64, 64]]},
        {"arguments": [1]},
    ],
)
def test_what_is_no_recipe_is_said(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        Recipe.from_dict(make().to_dict() | changes)
    assert caught.value.code == "recipe.invalid"
    values = make().to_dict()
    del values["family"]
    with pytest.raises(UsageError, match="family"):
        Recipe.from_dict(values)
