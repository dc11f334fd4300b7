from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from dippm.datasets.recipes.building import list_architectures
from dippm.datasets.recipes.collections import load_collection
from dippm.datasets.recipes.recipe import Recipe
from dippm.errors import UsageError

COUNTS = {
    "dippm-zoo": 10508,
    "dippm-unseen": 256,
    "dnnperf-hpo": 6000,
    "dnnperf-nas": 2000,
    "transformers": 1200,
    "dippm-small": 10508,
    "cpu-small": 500,
}


# Chosen, not drawn: what holds for drawn collections need not hold for them.
CHOSEN = {"adapt-50": 50, "cpu-standard": 67, "timm-named": 351}


_CHILD = """
import json, sys, time
from dippm.datasets.recipes.collections import load_collection
start = time.process_time()
recipes = load_collection("dippm-zoo")
spent = time.process_time() - start
heavy = sorted({"torch", "timm", "torchvision", "transformers", "pandas"} & set(sys.modules))
print(json.dumps([[recipe.key for recipe in recipes], spent, heavy]))
"""


def test_counts(collections) -> None:
    assert {name: len(recipes) for name, recipes in collections.items()} == COUNTS | CHOSEN


@pytest.mark.parametrize("name", COUNTS | CHOSEN)
def test_all_recipes_differ_and_say_where_they_belong(collections, name: str) -> None:
    recipes = collections[name]
    assert len({recipe.key for recipe in recipes}) == len(recipes)
    assert {recipe.collection for recipe in recipes} == {name}


def test_no_model_is_in_two_collections_but_few_of_the_small_ones_and_those_with_names(collections) -> None:
    keys = {name: {recipe.model_key for recipe in recipes} for name, recipes in collections.items()}
    named = keys.pop("timm-named")
    assert len(named & set().union(*keys.values())) == len(named & (keys["adapt-50"] | keys["cpu-standard"]))
    # Both are drawn from small members of the same families. Splits are by model, whatever the collection.
    shared = keys["dippm-small"] & keys["cpu-small"]
    assert len(shared) < 0.01 * len(keys["dippm-small"])
    assert sum(map(len, keys.values())) - len(shared) == len(set().union(*keys.values()))


@pytest.mark.parametrize("name", COUNTS)
def test_every_round_gives_each_model_another_batch(
    collections, name: str, by_round: Callable[[tuple[Recipe, ...]], list[list[Recipe]]]
) -> None:
    batches: dict[str, set[int]] = {}
    for recipe in collections[name]:
        batches.setdefault(recipe.model_key, set()).add(recipe.batch)
    rounds = by_round(collections[name])
    assert len(rounds) == max(map(len, batches.values()))
    assert sum(map(len, batches.values())) == len(collections[name])
    for turn, recipes in enumerate(rounds, start=1):
        assert {recipe.model_key for recipe in recipes} == {key for key, own in batches.items() if len(own) >= turn}
    for own in batches.values():
        assert 3 <= len(own) <= 8
        assert 1 <= min(own) <= max(own) <= 128


@pytest.mark.parametrize("name", COUNTS)
def test_any_prefix_has_every_family_in_proportion(
    collections, name: str, by_round: Callable[[tuple[Recipe, ...]], list[list[Recipe]]]
) -> None:
    families = [recipe.family for recipe in by_round(collections[name])[0]]
    totals = Counter(families)
    seen: Counter[str] = Counter()
    for length, family in enumerate(families, start=1):
        seen[family] += 1
        for other, total in totals.items():
            assert abs(seen[other] - length * total / len(families)) <= 1.5, (length, other)


def test_every_architecture_that_can_be_built_is_used(collections) -> None:
    used = {recipe.architecture for name in COUNTS for recipe in collections[name]}
    assert used == set(list_architectures())


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_another_process_draws_the_same_quickly_and_without_frameworks(collections, hash_seed: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, check=True, env=environment, text=True)
    keys, spent, heavy = json.loads(done.stdout)
    assert keys == [recipe.key for recipe in collections["dippm-zoo"]]
    assert spent < 1
    assert heavy == []


def test_an_unknown_collection_is_told_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean dippm-zoo") as caught:
        load_collection("dipm-zoo")
    assert caught.value.code == "collection.unknown"
