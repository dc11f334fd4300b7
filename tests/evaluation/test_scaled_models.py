"""The draw of models, larger images, and more blocks."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from dippm.datasets.recipes.recipe import Recipe
from dippm.evaluation.scaled_models import deepen, draw_models, enlarge
from dippm.frontends.inputs import InputEntry, InputShapes

# Not imported here: beside another build of torch, torchvision needs help to be imported.
needs_timm = pytest.mark.skipif(
    any(find_spec(package) is None for package in ("torch", "torchvision", "timm")), reason="needs timm and torchvision"
)


def _recipe(model, *, family="net", size=224, batch=8):
    return Recipe(
        collection="timm",
        family=family,
        architecture=f"zoo:timm:{model}",
        inputs=InputShapes(positional=(InputEntry(shape=(3, size, size)),)),
        batch=batch,
    )


def _names(recipes):
    return [recipe.architecture.removeprefix("zoo:timm:") for recipe in recipes]


def test_families_take_turns():
    recipes = [_recipe(f"a{number}", family="a") for number in range(20)]
    recipes += [_recipe(f"b{number}", family="b") for number in range(3)] + [_recipe("c0", family="c")]
    drawn = draw_models(recipes)
    assert sorted(_names(drawn)) == sorted(_names(recipes))
    assert sorted(name[0] for name in _names(drawn)[:3]) == ["a", "b", "c"]
    assert sorted(name[0] for name in _names(drawn)[3:7]) == ["a", "a", "b", "b"]


def test_the_draw_depends_on_the_seed_and_not_on_the_order():
    recipes = [_recipe(f"{family}{number}", family=family) for family in "abcd" for number in range(5)]
    assert _names(draw_models(recipes, seed=3)) == _names(draw_models(reversed(recipes), seed=3))
    assert _names(draw_models(recipes, seed=3)) != _names(draw_models(recipes, seed=4))


def test_of_a_model_the_smallest_image_is_taken():
    drawn = draw_models([_recipe("net", size=384), _recipe("net", size=224), _recipe("net", size=224, batch=64)])
    assert [recipe.inputs.positional[0].shape for recipe in drawn] == [(3, 224, 224)]


def test_an_image_of_twice_the_side():
    recipe = _recipe("net", size=112)
    larger = enlarge(recipe)
    assert larger.inputs.positional[0].shape == (3, 224, 224)
    assert (larger.architecture, larger.batch) == (recipe.architecture, recipe.batch)
    assert larger.model_key != recipe.model_key


@needs_timm
@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        ("resnet18", {"layers": (4, 4, 4, 4)}),
        ("vit_tiny_patch16_224", {"depth": 24}),
        ("convnext_atto", {"depths": (4, 4, 12, 4)}),
        ("swin_tiny_patch4_window7_224", {"depths": (4, 4, 12, 4)}),
        ("densenet121", {"block_config": (12, 24, 48, 32)}),
    ],
)
def test_an_argument_doubles_the_blocks(model, arguments):
    deeper = deepen(_recipe(model))
    assert deeper is not None
    assert dict(deeper.arguments) == arguments


@needs_timm
@pytest.mark.parametrize("model", ["efficientnet_b0", "gmixer_12_224", "vgg11"])
def test_what_no_argument_doubles_is_none(model):
    assert deepen(_recipe(model)) is None
