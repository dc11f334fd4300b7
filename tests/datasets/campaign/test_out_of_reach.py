"""Rows that are not tried because others of their model show how they would end."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dippm.costs.conditions import Conditions
from dippm.datasets.campaign.out_of_reach import OutOfReach
from dippm.datasets.campaign.plan import Request, Task, make_plan
from dippm.datasets.store.label import Label
from dippm.measuring.measurement import Measurement, Outcome

DEVICE = "Test Device"
LIMIT_S = 100.0


def training(optimizer: str = "adam") -> Request:
    return Request(conditions=Conditions.parse(mode="training", optimizer=optimizer))


def label_of(task: Task, outcome: Outcome = Outcome.OK, *, call_s: float | None = None) -> Label:
    latency_ms = None if call_s is None else 1e3 * call_s
    measurement = Measurement(outcome=outcome, device=DEVICE, measured_at="", latency_ms=latency_ms)
    return Label(recipe=task.recipe, configuration=task.configuration, measurement=measurement)


@pytest.fixture(name="tasks")
def _tasks(recipes: Any, inference: Any) -> dict[tuple[str, int], Task]:
    """A model at three batches, in inference and training; by precision and mode, and batch."""
    plan = make_plan(recipes(1), [inference(), training(), inference("amp")], device=DEVICE)
    return {
        (request.conditions.precision.value + "-" + request.conditions.mode.value, task.recipe.batch): task
        for task in plan.models[0].tasks
        for request in [task.series[1]]
    }


def found(reach: OutOfReach, tasks: dict[tuple[str, int], Task]) -> set[tuple[str, int]]:
    return {name for name, task in tasks.items() if reach.has(task)}


@pytest.mark.parametrize("limit_s", [LIMIT_S, math.inf])
def test_what_did_not_fit_does_not_fit_in_larger_batches_or_in_training(
    tasks: dict[tuple[str, int], Task], limit_s: float
) -> None:
    reach = OutOfReach(limit_s)
    assert found(reach, tasks) == set()
    reach.note(label_of(tasks["fp32-inference", 2], Outcome.OUT_OF_MEMORY))
    assert found(reach, tasks) == {
        ("fp32-inference", 2),
        ("fp32-inference", 4),
        ("fp32-training", 2),
        ("fp32-training", 4),
    }


def test_training_that_does_not_fit_says_nothing_of_inference(tasks: dict[tuple[str, int], Task]) -> None:
    reach = OutOfReach(LIMIT_S)
    reach.note(label_of(tasks["fp32-training", 1], Outcome.OUT_OF_MEMORY))
    assert found(reach, tasks) == {("fp32-training", batch) for batch in (1, 2, 4)}


def test_what_ran_out_of_time_does_so_in_larger_batches_and_in_training(tasks: dict[tuple[str, int], Task]) -> None:
    reach = OutOfReach(LIMIT_S)
    reach.note(label_of(tasks["fp32-inference", 4], Outcome.TIMED_OUT))
    assert found(reach, tasks) == {("fp32-inference", 4), ("fp32-training", 4)}


def test_five_calls_have_to_end_in_time_and_a_step_is_two_calls(tasks: dict[tuple[str, int], Task]) -> None:
    reach = OutOfReach(LIMIT_S)
    reach.note(label_of(tasks["fp32-inference", 1], call_s=9.9))
    assert found(reach, tasks) == set()
    reach.note(label_of(tasks["fp32-inference", 2], call_s=10.1))
    assert found(reach, tasks) == {("fp32-training", 2), ("fp32-training", 4)}
    reach.note(label_of(tasks["amp-inference", 2], call_s=20.1))
    assert ("amp-inference", 1) not in found(reach, tasks)
    assert ("amp-inference", 4) in found(reach, tasks)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.OK])
def test_other_ends_say_nothing(tasks: dict[tuple[str, int], Task], outcome: Outcome) -> None:
    reach = OutOfReach(LIMIT_S)
    reach.note(label_of(tasks["fp32-inference", 1], outcome))
    assert found(reach, tasks) == set()
