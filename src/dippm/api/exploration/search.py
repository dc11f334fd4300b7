"""The searches that an exploration can go by."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from dippm.api.exploration.choices import Choice, Choices
from dippm.api.exploration.objectives import Limit, Objective
from dippm.api.exploration.trials import Trial
from dippm.errors import UsageError

__all__ = ["Sampler", "Search", "make_search", "parse_sampler"]


class Sampler(StrEnum):
    """How the points to try are found."""

    SURROGATE = "surrogate"
    NSGA2 = "nsga2"
    TPE = "tpe"
    RANDOM = "random"


class Search(Protocol):
    """Proposes points and learns what became of them."""

    def propose(self, count: int, known: set[str]) -> list[Choices]:
        """New points, ``count`` at most and none where it finds no more; none whose key is known."""

    def learn(self, trials: Sequence[Trial]) -> None:
        """Take in what became of the points proposed last, in their order."""


def parse_sampler(name: str) -> Sampler:
    """A sampler by name.

    Raises:
        UsageError: ``explore.sampler``.
    """
    try:
        return Sampler(name)
    except ValueError as exc:
        raise UsageError(
            f"A sampler must be one of {', '.join(Sampler)}. Got '{name}' instead.", code="explore.sampler"
        ) from exc


def make_search(
    sampler: Sampler,
    choices: Sequence[Choice],
    objectives: Sequence[Objective],
    limits: Sequence[Limit],
    *,
    seed: int,
) -> Search:
    """A search that has seen nothing yet.

    Args:
        sampler: Which.
        choices: The space's choices.
        objectives: What is weighed.
        limits: What must be kept to.
        seed: Where chance starts.

    Raises:
        MissingExtraError: Optuna is needed for it and not installed.
    """
    if sampler is Sampler.SURROGATE:
        from dippm.api.exploration.surrogate_search import SurrogateSearch

        return SurrogateSearch(choices, objectives, seed=seed)
    from dippm.api.exploration.optuna_search import OptunaSearch

    return OptunaSearch(sampler, choices, objectives, limits, seed=seed)
