from __future__ import annotations

import pytest

from dippm.datasets.recipes.ordering import interleave, spread
from dippm.datasets.recipes.recipe import Recipe
from dippm.frontends.inputs import InputShapes


@pytest.mark.parametrize("count", [1, 2, 7, 100, 333])
@pytest.mark.parametrize("start", [0.0, 0.37, 0.99])
def test_every_item_comes_once(count: int, start: float) -> None:
    assert sorted(spread([(item, float(-item)) for item in range(count)], start=start)) == list(range(count))


@pytest.mark.parametrize("start", [0.0, 0.37, 0.99])
def test_every_prefix_covers_the_range_of_sizes(start: float) -> None:
    order = spread([(item, float(item)) for item in range(200)], start=start)
    for length in range(1, 201):
        for quarter in range(4):
            found = sum(item // 50 == quarter for item in order[:length])
            assert abs(found - length / 4) <= 2, (length, quarter)


def groups(family: str, count: int) -> list[tuple[tuple[Recipe, ...], float]]:
    def recipe(place: int, batch: int) -> Recipe:
        return Recipe(
            collection="test",
            family=family,
            architecture="test",
            arguments={"family": family, "place": place},
            inputs=InputShapes(),
            batch=batch,
        )

    return [((recipe(place, 1), recipe(place, 8)), float(place)) for place in range(count)]


def test_families_come_in_proportion_and_models_stay_whole() -> None:
    counts = {"a": 50, "b": 10, "c": 33, "d": 1}
    order = interleave({family: groups(family, count) for family, count in counts.items()}, collection="x", seed=0)
    assert len(order) == 2 * sum(counts.values())
    assert all(order[place].model_key == order[place + 1].model_key for place in range(0, len(order), 2))
    families = [recipe.family for recipe in order[::2]]
    for length in range(1, len(families) + 1):
        for family, count in counts.items():
            share = length * count / len(families)
            assert abs(families[:length].count(family) - share) <= 1.01, (length, family)


def test_the_order_depends_on_the_seed_and_on_nothing_else() -> None:
    families = {"a": groups("a", 40), "b": groups("b", 40)}
    first = interleave(families, collection="x", seed=0)
    assert first == interleave(dict(reversed(families.items())), collection="x", seed=0)
    assert first != interleave(families, collection="x", seed=1)
