from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from dippm.datasets.recipes.building import list_architectures
from dippm.datasets.recipes.collections import list_collections, load_collection
from dippm.datasets.recipes.recipe import Recipe
from dippm.errors import UsageError

# Table 2 of the DIPPM paper.
TABLE_2 = {
    "efficientnet": 1729,
    "mnasnet": 1001,
    "mobilenet": 1591,
    "resnet": 1152,
    "vgg": 1536,
    "swin": 547,
    "vit": 520,
    "densenet": 768,
    "visformer": 768,
    "poolformer": 896,
}
COUNTS = {
    "dippm-zoo": 10508,
    "dippm-unseen": 256,
    "dnnperf-hpo": 6000,
    "dnnperf-nas": 2000,
    "transformers": 1200,
    "cpu-small": 500,
}
# Chosen, not drawn: what holds for drawn collections need not hold for it.
CHOSEN = {"adapt-50": 50}
_CHILD = """
import json, sys, time
from dippm.datasets.recipes.collections import load_collection
start = time.process_time()
recipes = load_collection("dippm-zoo")
spent = time.process_time() - start
heavy = sorted({"torch", "timm", "torchvision", "transformers", "pandas"} & set(sys.modules))
print(json.dumps([[recipe.key for recipe in recipes], spent, heavy]))
"""


@pytest.fixture(name="collections", scope="module")
def _collections() -> dict[str, tuple[Recipe, ...]]:
    return {name: load_collection(name) for name in list_collections()}


def by_round(recipes: tuple[Recipe, ...]) -> list[list[Recipe]]:
    """The order cut where a model comes again."""
    rounds: list[list[Recipe]] = []
    seen: set[str] = set()
    for recipe in recipes:
        if recipe.model_key in seen or not rounds:
            rounds.append([])
            seen = set()
        seen.add(recipe.model_key)
        rounds[-1].append(recipe)
    return rounds


def test_counts(collections) -> None:
    assert {name: len(recipes) for name, recipes in collections.items()} == COUNTS | CHOSEN


def test_the_zoo_has_the_counts_of_the_papers_table_to_the_unit(collections) -> None:
    assert Counter(recipe.family for recipe in collections["dippm-zoo"]) == TABLE_2
    assert sum(TABLE_2.values()) == 10508


@pytest.mark.parametrize("name", COUNTS | CHOSEN)
def test_all_recipes_differ_and_say_where_they_belong(collections, name: str) -> None:
    recipes = collections[name]
    assert len({recipe.key for recipe in recipes}) == len(recipes)
    assert {recipe.collection for recipe in recipes} == {name}


def test_no_model_is_in_two_collections(collections) -> None:
    keys = [{recipe.model_key for recipe in recipes} for recipes in collections.values()]
    assert sum(map(len, keys)) == len(set().union(*keys))


def test_the_held_out_family_is_in_no_other_collection(collections) -> None:
    for name, recipes in collections.items():
        is_held_out = {recipe.architecture == "timm:convnext" for recipe in recipes}
        assert is_held_out == {name == "dippm-unseen"}


@pytest.mark.parametrize("name", COUNTS)
def test_every_round_gives_each_model_another_batch(collections, name: str) -> None:
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
def test_any_prefix_has_every_family_in_proportion(collections, name: str) -> None:
    families = [recipe.family for recipe in by_round(collections[name])[0]]
    totals = Counter(families)
    seen: Counter[str] = Counter()
    for length, family in enumerate(families, start=1):
        seen[family] += 1
        for other, total in totals.items():
            assert abs(seen[other] - length * total / len(families)) <= 1.5, (length, other)


@pytest.mark.parametrize("length", [250, 500, 1000, 3000, 6000])
def test_any_prefix_of_the_zoo_has_all_batches_in_proportion(collections, length: int) -> None:
    recipes = collections["dippm-zoo"]
    for low, high in ((1, 3), (4, 12), (16, 48), (64, 128)):
        whole = sum(low <= recipe.batch <= high for recipe in recipes) / len(recipes)
        found = sum(low <= recipe.batch <= high for recipe in recipes[:length]) / length
        # Two standard errors of a sample drawn at random.
        assert abs(found - whole) <= 2 * (whole * (1 - whole) / length) ** 0.5, (low, high)


def test_zoo_families_have_many_models_and_many_batches(collections) -> None:
    for family in TABLE_2:
        members = [recipe for recipe in collections["dippm-zoo"] if recipe.family == family]
        assert len({recipe.model_key for recipe in members}) >= 150, family
        assert {recipe.batch for recipe in members} >= {1, 2, 8, 32, 64, 128}, family
        assert {recipe.inputs.positional[0].shape[-1] for recipe in members} >= {128, 224, 384} or family == "vit"


def test_sequences_reach_from_32_to_4096(collections) -> None:
    for family in ("bert", "gpt2", "llama"):
        lengths = {
            recipe.inputs.named["input_ids"].shape[0]
            for recipe in collections["transformers"]
            if recipe.family == family
        }
        assert (min(lengths), max(lengths)) == (32, 4096), family


def test_every_architecture_that_can_be_built_is_used(collections) -> None:
    used = {recipe.architecture for name in COUNTS for recipe in collections[name]}
    assert used == set(list_architectures())


@pytest.mark.parametrize("name", COUNTS)
def test_recipes_survive_json(collections, name: str) -> None:
    for recipe in collections[name][::37]:
        again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
        assert (again.key, again.to_dict()) == (recipe.key, recipe.to_dict())


def test_another_seed_gives_other_recipes_in_the_same_numbers(collections) -> None:
    other = load_collection("dippm-zoo", seed=1)
    assert Counter(recipe.family for recipe in other) == TABLE_2
    mine = {recipe.key for recipe in collections["dippm-zoo"]}
    assert len(mine & {recipe.key for recipe in other}) < 0.05 * len(mine)


def test_what_to_adapt_by_has_batches_of_all_sizes_and_models_of_many_families(collections) -> None:
    recipes = collections["adapt-50"]
    assert len({recipe.family for recipe in recipes}) >= 30
    batches = Counter(recipe.batch for recipe in recipes)
    assert batches[1] >= 5
    assert min(batches[8], batches[32], batches[64], batches[128]) >= 5
    assert {recipe.key for recipe in load_collection("adapt-50", seed=1)} == {recipe.key for recipe in recipes}
    # A model comes again only when all others have come once.
    first = by_round(recipes)[0]
    assert len(first) == len({recipe.model_key for recipe in recipes})


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
