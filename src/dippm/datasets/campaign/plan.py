"""What a campaign is to measure, and in which order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from dippm.costs.conditions import Conditions
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.recipes.sampling import seeded
from dippm.datasets.store.label import Label
from dippm.measuring.configuration import Configuration, Engine
from dippm.measuring.measurement import Measurement, Outcome

__all__ = ["ModelPlan", "Plan", "Request", "Task", "is_chosen_for_repeat", "make_plan", "series_of"]

_ONE_IN = 50  # 2 % of the configurations are measured twice


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One way to run every recipe.

    Args:
        conditions: Precision, mode, layout, runtime and, in training, the optimizer.
        engine: What runs the model.
    """

    conditions: Conditions
    engine: Engine = Engine.TORCH


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One row to be.

    Args:
        recipe: The model and its batch.
        configuration: How it is run; its batch is the recipe's.
        key: Key that its label will have.
        repeat_key: Key of the second measurement where there is to be one, else None.
    """

    recipe: Recipe
    configuration: Configuration
    key: str
    repeat_key: str | None = None

    @property
    def series(self) -> tuple[str, Request]:
        """What tasks share that differ in their batch alone."""
        return series_of(self.recipe, self.configuration)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPlan:
    """Tasks of one model that stand together: it is built once for them.

    Args:
        recipe: A recipe of the model, to build it from.
        tasks: One condition after the other, and within each the batches in rising order.
    """

    recipe: Recipe
    tasks: tuple[Task, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A whole campaign.

    Args:
        device: The device's name, as its labels carry it.
        models: The models; in a first pass in the order of their collection, of which every prefix is a balanced
            sample. A model comes again where the collection comes back to it with another batch.
        row_limit_s: Wall time after which a row is given up, s; infinite for none.
        repeat: Repeat that its labels have: 0 for the first measurement of every configuration.
    """

    device: str
    models: tuple[ModelPlan, ...]
    row_limit_s: float = math.inf
    repeat: int = 0

    def tasks(self) -> Iterator[Task]:
        """All first measurements in order."""
        for model in self.models:
            yield from model.tasks

    def label_keys(self) -> Iterator[str]:
        """Keys of all labels, second measurements included."""
        for task in self.tasks():
            yield task.key
            if task.repeat_key is not None:
                yield task.repeat_key


def make_plan(
    recipes: Iterable[Recipe],
    requests: Sequence[Request],
    *,
    device: str,
    row_limit_s: float = math.inf,
    repeat: int = 0,
) -> Plan:
    """Cross recipes with conditions.

    Args:
        recipes: In stratified order; those of one model that stand next to each other share one built model.
        requests: How to run each of them.
        device: The device's name, as its labels will carry it.
        row_limit_s: Wall time after which a row is given up, s; infinite for none.
        repeat: Repeat that the labels are to have. Where it is not 0, every configuration is measured once more, and
            none a second time for the noise; models come in another order then, so that those which shared a moment of
            the machine in one pass do not in the next.
    """
    seen: set[str] = set()
    models = []
    for _, group in groupby(recipes, key=lambda recipe: recipe.model_key):
        members = sorted(group, key=lambda recipe: recipe.batch)
        tasks = []
        for request in requests:
            for recipe in members:
                task = _make_task(recipe, request, device=device, repeat=repeat)
                if task.key not in seen:
                    seen.add(task.key)
                    tasks.append(task)
        if tasks:
            models.append(ModelPlan(recipe=members[0], tasks=tuple(tasks)))
    if repeat:
        seeded("pass", repeat).shuffle(models)
    return Plan(device=device, models=tuple(models), row_limit_s=row_limit_s, repeat=repeat)


def series_of(recipe: Recipe, configuration: Configuration) -> tuple[str, Request]:
    """What configurations of a model share that differ in their batch alone."""
    return recipe.model_key, Request(conditions=configuration.conditions, engine=configuration.engine)


def is_chosen_for_repeat(key: str) -> bool:
    """Whether the configuration of a label's key is measured twice: by its hash, so that every run chooses the same."""
    return int(key, 16) % _ONE_IN == 0


def _make_task(recipe: Recipe, request: Request, *, device: str, repeat: int) -> Task:
    configuration = Configuration(batch=recipe.batch, conditions=request.conditions, engine=request.engine)
    # A label's key asks nothing of its measurement but the device's name.
    nothing = Measurement(outcome=Outcome.FAILED, device=device, measured_at="")
    key = Label(recipe=recipe, configuration=configuration, measurement=nothing, repeat=repeat).key
    repeat_key = None
    if repeat == 0 and is_chosen_for_repeat(key):
        repeat_key = Label(recipe=recipe, configuration=configuration, measurement=nothing, repeat=1).key
    return Task(recipe=recipe, configuration=configuration, key=key, repeat_key=repeat_key)
