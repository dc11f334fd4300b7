"""The default search: what the next models will cost is guessed from those known, and the most promising are built.

Gaussian processes learn the figures of all points seen. An evolution that costs nothing runs on their guesses, and from
where it ends the points are taken, one after the other, that add most to the volume which the front dominates,
estimated by sampling. The idea is that of surrogate-assisted evolution (Jin, 2011, doi:10.1016/j.swevo.2011.05.001).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dippm.api.exploration.choices import Choice, Choices, Value, draw, key_of
from dippm.api.exploration.front import costs_of, is_not_dominated
from dippm.api.exploration.gaussian_process import GaussianProcess, encode
from dippm.api.exploration.objectives import Objective
from dippm.api.exploration.trials import Trial

if TYPE_CHECKING:
    FloatArray = npt.NDArray[np.float64]

__all__ = ["SurrogateSearch"]

_FIRST = 30
_MOST_LEARNED = 500
_GENERATIONS = 25
_POPULATION = 200
_SAMPLES = 40_000
# Of those that the front has not reached and a candidate would, so many are enough.
_MOST_GAINED = 4000
_DRAWN = 4000
_FRESH_SHARE = 0.1
# How many choices of a point are changed, on average.
_CHANGED = (1.0, 2.0, 4.0)
_TRIES = 50


class SurrogateSearch:
    """Proposes points that are likely to push the front.

    Args:
        choices: The space's choices.
        objectives: What is weighed.
        seed: Another seed takes another way.
    """

    def __init__(self, choices: Sequence[Choice], objectives: Sequence[Objective], *, seed: int) -> None:
        self._choices, self._objectives = choices, objectives
        self._generator = np.random.default_rng(seed)
        self._trials: list[Trial] = []
        self._parameters: dict[str, FloatArray] = {}
        drawn = [draw(choices, self._generator) for _ in range(_DRAWN)]
        self._drawn = encode(choices, drawn)

    def learn(self, trials: Sequence[Trial]) -> None:
        """Take in what became of the points proposed last."""
        self._trials += trials

    def propose(self, count: int, known: set[str]) -> list[Choices]:
        """New points.

        Args:
            count: How many at most.
            known: Keys of points that are not to be proposed again.
        """
        taken = set(known)
        fine = [trial for trial in self._trials if not trial.has_failed]
        if len(self._trials) < _FIRST or len(fine) < 2:
            return self._first_points(count, taken)
        return self._promising(count, taken, fine)

    def _first_points(self, count: int, taken: set[str]) -> list[Choices]:
        """Both ends of all choices, then points at random."""
        points = []
        for at in (0, -1):
            ends = {
                choice.name: choice.options[at] if choice.options else (choice.low, choice.high)[at]
                for choice in self._choices
            }
            points.append(draw(self._choices, self._generator, ends))
        points += [draw(self._choices, self._generator) for _ in range(count * _TRIES)]
        return _unseen(points, taken)[:count]

    def _promising(self, count: int, taken: set[str], fine: Sequence[Trial]) -> list[Choices]:
        guess = _Guess(self._choices, self._objectives, self._trials, self._generator, self._parameters)
        known = guess.known_costs
        candidates = self._evolve(guess, [trial.choices for trial in fine], known)
        candidates = _unseen(candidates, taken)
        if not candidates:
            return self._first_points(count, taken)
        costs, chance = guess.costs(candidates)
        # Where nothing keeps to the limits yet, every point counts by its chance to.
        reached = known[guess.is_feasible]
        drawn = guess.costs_at(self._drawn)[0]
        front = reached[is_not_dominated(reached)]
        picked = [
            candidates[at] for at in _pick(costs, chance, front, known, drawn, count=count, generator=self._generator)
        ]
        if len(picked) < count:
            rest = set(taken) | {key_of(point) for point in picked}
            more = [self._vary(picked or candidates) for _ in range(count * _TRIES)]
            picked += _unseen(more, rest)[: count - len(picked)]
        return picked

    def _evolve(self, guess: _Guess, points: Sequence[Choices], known: FloatArray) -> list[Choices]:
        """Points that the guess holds for good: those known, changed and mixed again and again."""
        chance = guess.chance_of_known
        keep = _select(known, chance, _POPULATION)
        population = [points[at] for at in keep]
        costs, chances = known[keep], chance[keep]
        seen: dict[str, Choices] = {}
        for _ in range(_GENERATIONS):
            children = _unseen([self._vary(population) for _ in range(_POPULATION)], set(seen))
            if not children:
                break
            seen |= {key_of(child): child for child in children}
            child_costs, child_chances = guess.costs(children)
            population = [*population, *children]
            costs, chances = np.concatenate([costs, child_costs]), np.concatenate([chances, child_chances])
            keep = _select(costs, chances, _POPULATION)
            population, costs, chances = [population[at] for at in keep], costs[keep], chances[keep]
        fresh = [draw(self._choices, self._generator) for _ in range(int(_POPULATION * _FRESH_SHARE))]
        return [*population, *fresh]

    def _vary(self, population: Sequence[Choices]) -> Choices:
        """One point mixed with another, and some of its choices changed a little or drawn anew."""
        generator = self._generator
        child: dict[str, Value] = dict(population[int(generator.integers(len(population)))])
        if generator.random() < 0.5:
            other = population[int(generator.integers(len(population)))]
            is_taken = generator.random(len(other)) < 0.5
            child |= {name: other[name] for name, taken in zip(other, is_taken, strict=True) if taken}
        rate = _CHANGED[int(generator.integers(len(_CHANGED)))] / len(self._choices)
        for choice, is_changed in zip(self._choices, generator.random(len(self._choices)) < rate, strict=True):
            if is_changed and choice.name in child:
                child[choice.name] = _change(choice, child[choice.name], generator)
        return draw(self._choices, generator, child)


class _Guess:
    """What points will cost, and how likely they keep to all limits."""

    def __init__(
        self,
        choices: Sequence[Choice],
        objectives: Sequence[Objective],
        trials: Sequence[Trial],
        generator: np.random.Generator,
        parameters: dict[str, FloatArray],
    ) -> None:
        self._choices, self._parameters = choices, parameters
        fine = [trial for trial in trials if not trial.has_failed]
        costs = costs_of(fine, objectives)
        # Costs multiply: twice the depth is twice the time. Of a score nothing is known.
        self._is_logarithmic = [
            each.metric != "score" and bool((np.abs(costs[:, at]) > 0).all()) for at, each in enumerate(objectives)
        ]
        self.known_costs = self._transform(costs)
        self.is_feasible = np.array([trial.is_feasible for trial in fine])
        excess = np.array([trial.excess for trial in fine]).reshape(len(fine), -1)
        self.chance_of_known = np.where(self.is_feasible, 1.0, np.exp(-np.maximum(excess, 0.0).sum(axis=1)) * 1e-3)
        learned = self._choose_learned(len(fine), generator)
        inputs = encode(choices, [fine[at].choices for at in learned])
        self._costs = [
            self._learn(f"cost {at}", inputs, column[learned]) for at, column in enumerate(self.known_costs.T)
        ]
        self._excess = [self._learn(f"limit {at}", inputs, column[learned]) for at, column in enumerate(excess.T)]
        self._failure: GaussianProcess | None = None
        if len(fine) < len(trials):
            latest = trials[-_MOST_LEARNED:]
            self._failure = self._learn(
                "failure",
                encode(choices, [trial.choices for trial in latest]),
                np.array([float(trial.has_failed) for trial in latest]),
            )

    def costs(self, points: Sequence[Mapping[str, Value]]) -> tuple[FloatArray, FloatArray]:
        """Expected costs of points, and the chance that each is feasible.

        Shapes:
            returned: [points, objectives] and [points].
        """
        return self.costs_at(encode(self._choices, points))

    def costs_at(self, inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The same of points as numbers, see :func:`encode`."""
        costs = np.stack([process.predict(inputs)[0] for process in self._costs], axis=1)
        chance = np.ones(len(inputs))
        for process in self._excess:
            mean, spread = process.predict(inputs)
            # The logistic function is close to the normal distribution's at this slope.
            chance *= 1.0 / (1.0 + np.exp(np.clip(1.702 * mean / np.maximum(spread, 1e-9), -50.0, 50.0)))
        if self._failure is not None:
            chance *= np.clip(1.0 - self._failure.predict(inputs)[0], 0.01, 1.0)
        return costs, chance

    def _learn(self, name: str, inputs: FloatArray, values: FloatArray) -> GaussianProcess:
        """A process that starts from the kernel of the last one of its name."""
        process = GaussianProcess(inputs, values, start=self._parameters.get(name))
        self._parameters[name] = process.parameters
        return process

    def _transform(self, costs: FloatArray) -> FloatArray:
        return np.stack(
            [
                np.sign(column) * np.log(np.abs(column)) if is_logarithmic else column
                for column, is_logarithmic in zip(costs.T, self._is_logarithmic, strict=True)
            ],
            axis=1,
        )

    def _choose_learned(self, count: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
        """All points, or where they are too many the best of them and some of the others."""
        if count <= _MOST_LEARNED:
            return np.arange(count)
        best = _select(self.known_costs, self.chance_of_known, _MOST_LEARNED // 2)
        others = np.setdiff1d(np.arange(count), best)
        return np.sort(np.concatenate([best, generator.choice(others, _MOST_LEARNED - len(best), replace=False)]))


def _select(costs: FloatArray, chance: FloatArray, count: int) -> npt.NDArray[np.int64]:
    """The best rows: front after front, from the last one those that are farthest from their neighbours.

    What probably breaks a limit comes after all that keeps to them.
    """
    is_likely = chance >= 0.5
    rest, others = np.flatnonzero(is_likely), np.flatnonzero(~is_likely)
    chosen: list[int] = []
    while len(rest) and len(chosen) < count:
        on_front = is_not_dominated(costs[rest])
        front = rest[on_front]
        if len(chosen) + len(front) > count:
            front = front[_farthest(costs[front], count - len(chosen))]
        chosen += front.tolist()
        rest = rest[~on_front]
    chosen += others[np.argsort(-chance[others], kind="stable")][: count - len(chosen)].tolist()
    return np.array(chosen, dtype=np.int64)


def _farthest(costs: FloatArray, count: int) -> npt.NDArray[np.int64]:
    """Rows with the largest crowding distance (NSGA-II, Deb et al., 2002)."""
    distance = np.zeros(len(costs))
    for column in costs.T:
        order = np.argsort(column, kind="stable")
        span = max(float(column[order[-1]] - column[order[0]]), 1e-12)
        distance[order[1:-1]] += (column[order[2:]] - column[order[:-2]]) / span
        distance[order[[0, -1]]] = np.inf
    return np.argsort(-distance, kind="stable")[:count]


def _pick(
    costs: FloatArray,
    chance: FloatArray,
    front: FloatArray,
    known: FloatArray,
    drawn: FloatArray,
    *,
    count: int,
    generator: np.random.Generator,
) -> list[int]:
    """Candidates that add most to what the front dominates, each after those picked before.

    What it dominates is measured half by volume, which counts the ends of the front, and half by what the models of the
    space are guessed to cost, which counts where most of them are.

    Shapes:
        costs: [candidates, objectives]; chance: [candidates]; front, known, drawn: [points, objectives].
    """
    everything = np.concatenate([costs, known])
    low, high = everything.min(axis=0), everything.max(axis=0)
    volume = generator.uniform(low, high + 1e-12, size=(_SAMPLES, costs.shape[1]))
    best = costs[is_not_dominated(costs)]
    gains: list[npt.NDArray[np.bool_]] = []
    for samples in (volume, drawn):
        is_gain = ~_are_reached(samples, front) & _are_reached(samples, best)
        samples = samples[is_gain][:_MOST_GAINED]
        gains.append(np.asarray((samples[None, :, :] >= costs[:, None, :]).all(axis=2)))
    shares = [0.5 / max(gained.shape[1], 1) for gained in gains]
    picked: list[int] = []
    for _ in range(min(count, len(costs))):
        worth = np.zeros(len(costs))
        for share, gained in zip(shares, gains, strict=True):
            worth += share * gained.sum(axis=1) * chance
        worth[picked] = -1.0
        at = int(worth.argmax())
        if worth[at] <= 0:
            break
        picked.append(at)
        for gained in gains:
            gained &= ~gained[at]
    return picked


def _are_reached(samples: FloatArray, costs: FloatArray) -> npt.NDArray[np.bool_]:
    """Which samples a row is at least as good as in every column."""
    reached = np.zeros(len(samples), dtype=bool)
    for row in costs:
        reached |= (samples >= row).all(axis=1)
    return reached


def _change(choice: Choice, value: Value, generator: np.random.Generator) -> Value:
    """Another value: mostly one nearby where the options have an order."""
    if not choice.options:
        spread = 0.15 * (choice.high - choice.low)
        return float(np.clip(float(value) + generator.normal(0.0, spread), choice.low, choice.high))
    if choice.is_ordered and generator.random() < 0.7:
        place = choice.place(value) + (1 if generator.random() < 0.5 else -1)
        return choice.options[min(max(place, 0), len(choice.options) - 1)]
    return choice.draw(generator)


def _unseen(points: Sequence[Choices], taken: set[str]) -> list[Choices]:
    """Those that are not taken, each once."""
    found = {key_of(point): point for point in points}
    return [point for key, point in found.items() if key not in taken]
