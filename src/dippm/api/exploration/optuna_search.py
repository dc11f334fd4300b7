"""Optuna's samplers as searches: random, NSGA-II and TPE, by its ask-and-tell interface."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from dippm.api.exploration.choices import Choice, Choices, draw, key_of, open_choices
from dippm.api.exploration.objectives import Limit, Objective
from dippm.api.exploration.trials import Trial
from dippm.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dippm.api.exploration.search import Sampler

__all__ = ["OptunaSearch"]

_EXCESS = "excess"
# Points that were proposed before are told again, so that the sampler moves on, and then changed at random.
_TRIES = 20
_RANDOM_TRIES = 200


class OptunaSearch:
    """A study of Optuna's, kept in memory, with the settings that Optuna itself advises.

    Args:
        sampler: Which sampler.
        choices: The space's choices.
        objectives: What is weighed.
        limits: What must be kept to.
        seed: Where chance starts.

    Raises:
        MissingExtraError: Optuna is not installed.
    """

    def __init__(
        self,
        sampler: Sampler,
        choices: Sequence[Choice],
        objectives: Sequence[Objective],
        limits: Sequence[Limit],
        *,
        seed: int,
    ) -> None:
        self._choices, self._objectives = choices, objectives
        self._generator = np.random.default_rng(seed)
        self._open: list[Any] = []
        self._results: dict[str, Trial] = {}
        with _quiet_optuna() as optuna:
            samplers = optuna.samplers
            judge = _judge if limits else None
            if sampler == "nsga2":
                made = samplers.NSGAIISampler(seed=seed, constraints_func=judge)
            elif sampler == "tpe":
                # As Optuna 5 has it, and its documentation before: a constant liar where several points are asked for
                # before the first is told; choices together for one objective, in groups where some depend on others.
                is_joint = len(objectives) == 1
                made = samplers.TPESampler(
                    seed=seed,
                    constant_liar=True,
                    multivariate=is_joint,
                    group=is_joint and any(choice.condition for choice in choices),
                    constraints_func=judge,
                )
            else:
                made = samplers.RandomSampler(seed=seed)
            self._study = optuna.create_study(sampler=made, directions=["minimize"] * len(objectives))
            self._failed = optuna.trial.TrialState.FAIL

    def propose(self, count: int, known: set[str]) -> list[Choices]:
        """New points; one that the sampler repeats is answered from what is known, and it is asked again."""
        taken = set(known)
        points: list[Choices] = []
        self._open = []
        with _quiet_optuna():
            while len(points) < count:
                found = self._ask_for_new(taken)
                if found is None:
                    break
                trial, point = found
                taken.add(key_of(point))
                self._open.append(trial)
                points.append(point)
        return points

    def learn(self, trials: Sequence[Trial]) -> None:
        """Tell the study what became of the points proposed last."""
        with _quiet_optuna():
            for asked, trial in zip(self._open, trials, strict=True):
                self._results[trial.key] = trial
                self._tell(asked, trial)
        self._open = []

    def _ask_for_new(self, taken: set[str]) -> tuple[Any, Choices] | None:
        point: Choices = {}
        for _ in range(_TRIES):
            asked = self._study.ask()
            point = self._suggest(asked)
            key = key_of(point)
            if key not in taken:
                return asked, point
            known = self._results.get(key)
            if known is None:
                # Proposed in this very batch: what becomes of it is not known yet.
                self._study.tell(asked, state=self._failed)
            else:
                self._tell(asked, known)
        for attempt in range(_RANDOM_TRIES):
            kept = {name: value for name, value in point.items() if self._generator.random() > attempt / _RANDOM_TRIES}
            changed = draw(self._choices, self._generator, kept)
            if key_of(changed) not in taken:
                self._study.enqueue_trial(self._places(changed))
                asked = self._study.ask()
                return asked, self._suggest(asked)
        return None

    def _suggest(self, asked: Any) -> Choices:
        chosen: Choices = {}
        for choice in open_choices(self._choices, chosen):
            if not choice.options:
                chosen[choice.name] = asked.suggest_float(choice.name, choice.low, choice.high)
            elif choice.is_ordered:
                chosen[choice.name] = choice.options[asked.suggest_int(choice.name, 0, len(choice.options) - 1)]
            else:
                places = range(len(choice.options))
                chosen[choice.name] = choice.options[asked.suggest_categorical(choice.name, list(places))]
        return chosen

    def _places(self, point: Choices) -> dict[str, float]:
        """What Optuna knows of a point: places among the options."""
        named = {choice.name: choice for choice in self._choices}
        return {
            name: named[name].place(value) if named[name].options else float(value) for name, value in point.items()
        }

    def _tell(self, asked: Any, trial: Trial) -> None:
        if trial.has_failed:
            self._study.tell(asked, state=self._failed)
            return
        asked.set_user_attr(_EXCESS, list(trial.excess))
        self._study.tell(asked, trial.costs(self._objectives))


def _judge(frozen: Any) -> Sequence[float]:
    """How far each limit is passed, as Optuna's samplers ask for it: 0 or less where it is kept."""
    excess: list[float] = frozen.user_attrs[_EXCESS]
    return excess


@contextmanager
def _quiet_optuna() -> Iterator[Any]:
    """Optuna without its messages and its warnings of things to come; after that it says again what the caller wants.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import optuna
    except ImportError as exc:
        raise MissingExtraError(package="optuna", extra="explore", purpose="search by this sampler") from exc
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield optuna
    finally:
        optuna.logging.set_verbosity(before)
