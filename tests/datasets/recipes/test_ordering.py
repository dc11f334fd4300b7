from __future__ import annotations

from collections import Counter

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


def test_every_round_has_each_model_once_and_families_in_proportion() -> None:
    counts = {"a": 50, "b": 10, "c": 33, "d": 1}
    order = interleave({family: groups(family, count) for family, count in counts.items()}, collection="x", seed=0)
    models = sum(counts.values())
    assert len({recipe.key for recipe in order}) == len(order) == 2 * models
    for turn in (order[:models], order[models:]):
        assert len({recipe.model_key for recipe in turn}) == models
        families = [recipe.family for recipe in turn]
        for length in range(1, models + 1):
            for family, count in counts.items():
                share = length * count / models
                assert abs(families[:length].count(family) - share) <= 1.01, (length, family)


def test_the_first_batches_are_small_and_large_ones_for_small_and_large_models() -> None:
    order = interleave({"a": groups("a", 120)}, collection="x", seed=0)
    for length in (24, 60, 120):
        cells = Counter((recipe.arguments["place"] >= 60, recipe.batch) for recipe in order[:length])
        for cell in ((False, 1), (False, 8), (True, 1), (True, 8)):
            assert abs(cells[cell] - length / 4) <= 4, (length, cell)


def test_the_order_depends_on_the_seed_and_on_nothing_else() -> None:
    families = {"a": groups("a", 40), "b": groups("b", 40)}
    first = interleave(families, collection="x", seed=0)
    assert first == interleave(dict(reversed(families.items())), collection="x", seed=0)
    assert first != interleave(families, collection="x", seed=1)
