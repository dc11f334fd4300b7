from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

from dippm.costs.conditions import Conditions
from dippm.datasets.campaign.plan import Request, is_chosen_for_repeat, make_plan
from dippm.datasets.recipes.collections import load_collection
from dippm.datasets.store.label import Label
from dippm.measuring.measurement import Measurement, Outcome


def test_a_model_comes_once_with_all_its_conditions_and_rising_batches(recipes: Any, inference: Any) -> None:
    shuffled = recipes(2, batches=(4, 1, 2))
    plan = make_plan(shuffled, [inference(), inference("amp")], device="D")
    assert [model.recipe.arguments["width"] for model in plan.models] == [0, 1]
    for model in plan.models:
        asked = [(task.configuration.conditions.precision, task.recipe.batch) for task in model.tasks]
        assert asked == [("fp32", 1), ("fp32", 2), ("fp32", 4), ("amp", 1), ("amp", 2), ("amp", 4)]
        assert all(task.configuration.batch == task.recipe.batch for task in model.tasks)


def test_keys_are_those_of_the_labels(recipes: Any, inference: Any) -> None:
    plan = make_plan(recipes(40), [inference()], device="D")
    measurement = Measurement(outcome=Outcome.OK, device="D", measured_at="now", latency_ms=3.0)
    expected = set()
    for task in plan.tasks():
        label = Label(recipe=task.recipe, configuration=task.configuration, measurement=measurement)
        assert label.key == task.key
        expected.add(label.key)
        if task.repeat_key is not None:
            expected.add(
                Label(recipe=task.recipe, configuration=task.configuration, measurement=measurement, repeat=1).key
            )
    keys = list(plan.label_keys())
    assert len(keys) == len(set(keys))
    assert set(keys) == expected


def test_two_percent_are_chosen_for_a_repeat_whatever_the_plan_around_them(recipes: Any, inference: Any) -> None:
    tasks = list(make_plan(recipes(2000), [inference()], device="D").tasks())
    chosen = {task.key for task in tasks if task.repeat_key is not None}
    assert 0.015 < len(chosen) / len(tasks) < 0.025
    assert chosen == {task.key for task in tasks if is_chosen_for_repeat(task.key)}
    prefix = list(make_plan(recipes(500), [inference("amp"), inference()], device="D").tasks())
    assert {task.key for task in prefix if task.repeat_key} & chosen == chosen & {task.key for task in prefix}


def test_a_further_pass_has_every_configuration_once_more(recipes: Any, inference: Any) -> None:
    first, second, third = (make_plan(recipes(400), [inference()], device="D", repeat=repeat) for repeat in range(3))
    tasks = list(second.tasks())
    asked = [[(task.recipe.key, task.configuration.batch) for task in plan.tasks()] for plan in (first, second, third)]
    assert sorted(asked[0]) == sorted(asked[1]) == sorted(asked[2])
    # Each in an order of its own.
    assert asked[0] != asked[1] != asked[2] != asked[0]
    assert all(task.repeat_key is None for task in tasks)
    measurement = Measurement(outcome=Outcome.OK, device="D", measured_at="now")
    assert tasks[0].key == (
        Label(recipe=tasks[0].recipe, configuration=tasks[0].configuration, measurement=measurement, repeat=1).key
    )
    # What the first pass has measured a second time already is a part of the second.
    repeats = {task.repeat_key for task in first.tasks()} - {None}
    assert repeats
    assert set(first.label_keys()) & set(second.label_keys()) == repeats
    assert not set(third.label_keys()) & (set(first.label_keys()) | set(second.label_keys()))


def test_another_device_is_another_plan_and_doubles_count_once(recipes: Any, inference: Any) -> None:
    once = recipes(3)
    plan = make_plan(once + once, [inference(), inference()], device="D")
    assert sum(1 for _ in plan.tasks()) == len(once)
    assert not set(plan.label_keys()) & set(make_plan(once, [inference()], device="E").label_keys())


def test_a_thousand_rows_of_the_zoo_are_of_hundreds_of_models_in_all_families() -> None:
    requests = [
        Request(conditions=Conditions.parse(mode=mode, precision=precision, optimizer=optimizer))
        for mode, optimizer in (("inference", None), ("training", "sgd"))
        for precision in ("fp32", "amp")
    ]
    tasks = list(islice(make_plan(load_collection("dippm-zoo"), requests, device="D").tasks(), 1000))
    assert len({task.recipe.model_key for task in tasks}) >= 200
    families = Counter(task.recipe.family for task in tasks)
    assert len(families) == 10
    assert min(families.values()) >= 60
    assert len({task.recipe.batch for task in tasks}) == 14
    assert set(Counter(task.configuration.conditions for task in tasks).values()) == {250}
    # All conditions of a model at a batch stand together: one built model serves them.
    for place in range(0, 1000, 4):
        assert len({task.recipe.key for task in tasks[place : place + 4]}) == 1


def test_a_model_that_the_collection_comes_back_to_is_planned_again(recipes: Any, inference: Any) -> None:
    mixed = sorted(recipes(2, batches=(4, 1)), key=lambda recipe: -recipe.batch)
    plan = make_plan(mixed, [inference(), inference("amp")], device="D")
    assert [(model.recipe.arguments["width"], model.recipe.batch) for model in plan.models] == [
        (0, 4),
        (1, 4),
        (0, 1),
        (1, 1),
    ]
    assert len(set(plan.label_keys())) >= 8
