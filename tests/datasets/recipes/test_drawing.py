from __future__ import annotations

import random

import pytest

from dippm.datasets.recipes.drawing import FamilyPlan, draw_collection, share_equally
from dippm.datasets.recipes.sampling import Cost, Draw, Limits, Reach
from dippm.frontends.inputs import InputEntry, InputShapes

REACH = Reach(sizes=(128,), width=(1.0, 1.0), depth=(1.0, 1.0))
LIMITS = Limits(batches=(1, 2, 4, 8), gmacs=100, memory_gb=4)


def sample(rng: random.Random, reach: Reach) -> Draw:
    width = rng.randint(1, 500)
    return Draw(
        architecture="test:linear",
        arguments={"width": width},
        inputs=InputShapes(positional=(InputEntry(shape=(width,)),)),
        cost=Cost(gmacs=width / 100, elements_m=0.1, parameters_m=0.1),
    )


@pytest.mark.parametrize(("recipes", "counts"), [(30, [10, 10, 10]), (32, [11, 11, 10])])
def test_equal_shares_to_within_one(recipes: int, counts: list[int]) -> None:
    plans = share_equally(dict.fromkeys("abc", sample), recipes=recipes, batches_per_model=3)
    assert [plan.recipes for plan in plans.values()] == counts
    assert {plan.models for plan in plans.values()} == {3}


def test_a_collection_has_what_is_planned_and_names_itself() -> None:
    plans = {
        "wide": FamilyPlan(sampler=sample, models=12, recipes=30),
        "narrow": FamilyPlan(sampler=sample, models=4, recipes=8),
    }
    recipes = draw_collection("mine", plans, reach=REACH, limits=LIMITS, seed=0)
    for family, plan in plans.items():
        members = [recipe for recipe in recipes if recipe.family == family]
        assert len({recipe.model_key for recipe in members}) == plan.models
        assert len({recipe.key for recipe in members}) == len(members) == plan.recipes
    assert {recipe.collection for recipe in recipes} == {"mine"}
    assert recipes == draw_collection("mine", plans, reach=REACH, limits=LIMITS, seed=0)
    # Another name or seed draws others.
    for name, seed in (("mine", 1), ("other", 0)):
        others = draw_collection(name, plans, reach=REACH, limits=LIMITS, seed=seed)
        assert {recipe.key for recipe in others} != {recipe.key for recipe in recipes}
