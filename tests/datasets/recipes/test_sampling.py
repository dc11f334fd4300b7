from __future__ import annotations

import random

import pytest

from dippm.datasets.recipes.sampling import Cost, Draw, Limits, Reach, Tally, draw_family, seeded
from dippm.frontends.inputs import InputEntry, InputShapes

REACH = Reach(sizes=(128, 224), width=(0.5, 2.0), depth=(0.5, 1.5))
LIMITS = Limits(batches=(1, 2, 4, 8, 16), gmacs=10, memory_gb=4)


def sample(rng: random.Random, reach: Reach) -> Draw:
    width = rng.randint(1, 200)
    return Draw(
        architecture="test:linear",
        arguments={"width": width},
        inputs=InputShapes(positional=(InputEntry(shape=(width,)),)),
        cost=Cost(gmacs=width / 100, elements_m=0.1, parameters_m=0.1),
    )


def draw(models: int, recipes: int, seed: int = 0):
    return draw_family(
        sample,
        collection="test",
        family="linear",
        models=models,
        recipes=recipes,
        reach=REACH,
        limits=LIMITS,
        seed=seed,
    )


def test_a_convolution_is_counted_as_it_is_computed() -> None:
    tally = Tally()
    tally.conv(16, 32, 3, 100, groups=4, repeats=2)
    cost = tally.result()
    assert cost.gmacs == pytest.approx(2 * 16 * 32 * 9 / 4 * 100 / 1e9)
    assert cost.elements_m == pytest.approx(2 * 32 * 100 / 1e6)
    assert cost.parameters_m == pytest.approx(2 * 16 * 32 * 9 / 4 / 1e6)


def test_attention_costs_two_products_and_no_weights() -> None:
    tally = Tally()
    tally.attention(64, 10, 20)
    assert tally.result().gmacs == pytest.approx(2 * 64 * 10 * 20 / 1e9)
    assert tally.result().parameters_m == 0


def test_batches_end_at_the_arithmetic_or_at_the_memory_that_a_call_may_take() -> None:
    assert LIMITS.feasible(Cost(gmacs=2.5, elements_m=0, parameters_m=0)) == (1, 2, 4)
    heavy = Cost(gmacs=0, elements_m=100, parameters_m=10)
    # Weights 4 x 10 million, 2.5 x 100 million kept per sample, four bytes each.
    assert heavy.training_memory_gb(3) == pytest.approx((40 + 750) * 4 / 1e3)
    assert LIMITS.feasible(heavy) == (1, 2)


@pytest.mark.parametrize(("models", "recipes"), [(10, 10), (10, 33), (7, 28), (12, 60)])
def test_counts_are_to_the_unit_and_all_recipes_differ(models: int, recipes: int) -> None:
    drawn = draw(models, recipes)
    assert len(drawn) == models
    every = [recipe for group, _ in drawn for recipe in group]
    assert len(every) == recipes
    assert len({recipe.key for recipe in every}) == recipes
    for group, gmacs in drawn:
        assert len({recipe.model_key for recipe in group}) == 1
        assert [recipe.batch for recipe in group] == sorted({recipe.batch for recipe in group})
        assert all(recipe.batch * gmacs <= LIMITS.gmacs for recipe in group)


def test_the_seed_alone_decides() -> None:
    assert draw(10, 30) == draw(10, 30)
    keys = [{recipe.key for group, _ in draw(10, 30, seed) for recipe in group} for seed in (0, 1)]
    assert keys[0] != keys[1]
    assert seeded("a", 1).random() == seeded("a", 1).random() != seeded("a", 2).random()


def test_a_family_that_is_too_small_is_a_fault_and_not_an_endless_loop() -> None:
    with pytest.raises(RuntimeError, match="gave only 200 of 300"):
        draw(300, 300)
    with pytest.raises(RuntimeError, match="cannot be shared out"):
        draw(2, 17)


def test_reach_stays_within_its_bounds() -> None:
    rng = seeded(3)
    assert all(0.5 <= REACH.draw_width(rng) <= 2 for _ in range(200))
    depths = [REACH.draw_depths(rng, (1, 4, 20)) for _ in range(200)]
    assert all(
        1 <= depth <= round(1.5 * 1.25 * usual) for row in depths for depth, usual in zip(row, (1, 4, 20), strict=True)
    )
    assert not REACH.is_small
    assert Reach(sizes=(32,), width=(0.1, 0.5), depth=(1, 1)).is_small
