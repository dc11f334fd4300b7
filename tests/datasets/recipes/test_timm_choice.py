from __future__ import annotations

from dippm.datasets.recipes.timm_choice import order_timm_models

CHOSEN = (
    ("resnet18", 224, 8, "resnet"),
    ("resnet18", 224, 1, "resnet"),
    ("resnet50", 288, 4, "resnet"),
    ("vit_tiny_patch16_224", 224, 2, "vit"),
)


def test_every_choice_is_a_recipe_of_a_model_by_name() -> None:
    recipes = order_timm_models(CHOSEN, collection="some", seed=0)
    found = {(r.architecture, r.inputs.positional[0].shape, r.batch, r.family, r.collection) for r in recipes}
    assert found == {
        (f"zoo:timm:{name}", (3, pixels, pixels), batch, family, "some") for name, pixels, batch, family in CHOSEN
    }
    assert len(recipes) == len(CHOSEN)


def test_a_model_comes_again_when_all_others_have_come() -> None:
    *first, last = order_timm_models(CHOSEN, collection="some", seed=0)
    assert len({recipe.model_key for recipe in first}) == 3
    assert last.architecture == "zoo:timm:resnet18"
