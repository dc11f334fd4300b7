"""Draws models of a family at random from a seed, and gives each the batch sizes that a device can run."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dippm.datasets.recipes.recipe import Argument, Recipe
from dippm.frontends.inputs import InputShapes

__all__ = ["Cost", "Draw", "Limits", "Reach", "Sampler", "Tally", "draw_family", "seeded"]

BYTES_PER_ELEMENT = 4
# What training keeps of a convolution is its output, the normalised output and part of the activation.
KEPT_PER_OUTPUT = 2.5
# Weight, gradient and the two moments of Adam.
COPIES_OF_WEIGHTS = 4
_MOST_TRIES = 200
_MOST_BATCHES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """How large the models of a family may get.

    Args:
        sizes: Heights and widths of images, pixels.
        width: Smallest and largest factor on the family's usual number of channels.
        depth: Smallest and largest factor on the family's usual number of layers.
    """

    sizes: tuple[int, ...]
    width: tuple[float, float]
    depth: tuple[float, float]

    @property
    def is_small(self) -> bool:
        """Whether it holds toy models alone: fixed parts, such as a classifier's width, shrink too."""
        return self.width[1] < 1

    def draw_size(self, rng: random.Random) -> int:
        """Height and width of the images."""
        return rng.choice(self.sizes)

    def draw_width(self, rng: random.Random) -> float:
        """Factor on channels, equally likely to halve as to double."""
        low, high = self.width
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    def draw_depths(self, rng: random.Random, usual: Sequence[int]) -> tuple[int, ...]:
        """Layers of each stage: one factor for all of them, and a little of its own for each."""
        factor = rng.uniform(*self.depth)
        return tuple(max(1, round(count * factor * rng.uniform(0.75, 1.25))) for count in usual)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one sample costs, roughly: enough to order models by size and to leave out absurd batches.

    Args:
        gmacs: Multiply-accumulates of one forward pass, 10^9.
        elements_m: Outputs of convolutions and matrix products, 10^6.
        parameters_m: Weights, 10^6.
    """

    gmacs: float
    elements_m: float
    parameters_m: float

    def training_memory_gb(self, batch: int) -> float:
        """Memory of a training step, 10^9 bytes, roughly."""
        elements = COPIES_OF_WEIGHTS * self.parameters_m + KEPT_PER_OUTPUT * batch * self.elements_m
        return elements * BYTES_PER_ELEMENT / 1e3


class Tally:
    """Adds up the cost of a model, layer by layer."""

    def __init__(self) -> None:
        self._macs = self._elements = self._parameters = 0.0

    def conv(
        self, inputs: int, outputs: int, kernel: int, positions: float, *, groups: int = 1, repeats: float = 1
    ) -> None:
        """Add convolutions: channels in and out, kernel's side, output positions, groups, how many such layers."""
        weights = inputs * outputs * kernel * kernel / groups
        self._add(weights, outputs, positions, repeats)

    def linear(self, inputs: int, outputs: int, positions: float = 1, *, repeats: float = 1) -> None:
        """Add linear layers: features in and out, positions, how many such layers."""
        self._add(inputs * outputs, outputs, positions, repeats)

    def attention(self, width: int, tokens: float, span: float, *, repeats: float = 1) -> None:
        """Add the two products of attention in which each of the tokens looks at ``span`` others.

        The scores are not counted as kept: fused kernels compute them again.
        """
        self._macs += 2 * width * tokens * span * repeats
        self._elements += width * tokens * repeats

    def embed(self, rows: int, width: int, positions: float) -> None:
        """Add an embedding table."""
        self._parameters += rows * width
        self._elements += width * positions

    def keep(self, width: int, positions: float) -> None:
        """Add a result that costs nothing to compute and is kept all the same."""
        self._elements += width * positions

    def result(self) -> Cost:
        """All that was added."""
        return Cost(gmacs=self._macs / 1e9, elements_m=self._elements / 1e6, parameters_m=self._parameters / 1e6)

    def _add(self, weights: float, outputs: int, positions: float, repeats: float) -> None:
        self._macs += weights * positions * repeats
        self._elements += outputs * positions * repeats
        self._parameters += weights * repeats


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """One model that was drawn: what :class:`Recipe` says of it, and its cost."""

    architecture: str
    arguments: Mapping[str, Argument]
    inputs: InputShapes
    cost: Cost


Sampler = Callable[[random.Random, Reach], Draw]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Which batch sizes are tried, and what one call may cost.

    Args:
        batches: Batch sizes to choose from.
        gmacs: Most multiply-accumulates of one forward call, 10^9.
        memory_gb: Most memory of a training step, 10^9 bytes.
    """

    batches: tuple[int, ...]
    gmacs: float
    memory_gb: float

    def feasible(self, cost: Cost) -> tuple[int, ...]:
        """Batch sizes that a model of this cost may be run at."""
        return tuple(
            batch
            for batch in self.batches
            if batch * cost.gmacs <= self.gmacs and cost.training_memory_gb(batch) <= self.memory_gb
        )


def seeded(*names: object) -> random.Random:
    """A generator that depends on these names alone: on any machine, in any process, in any order of calls."""
    return random.Random("/".join(str(name) for name in names))  # noqa: S311 - not for secrets


def draw_family(
    sampler: Sampler,
    *,
    collection: str,
    family: str,
    models: int,
    recipes: int,
    reach: Reach,
    limits: Limits,
    seed: int,
) -> list[tuple[tuple[Recipe, ...], float]]:
    """Draw the models of one family, all different, and share the recipes out among them as batch sizes.

    Args:
        sampler: Draws one model.
        collection: Set that the recipes belong to.
        family: Family within the set.
        models: Number of models.
        recipes: Number of recipes, at least one and at most eight times the models.
        reach: How large the models may get.
        limits: Batch sizes, and what a call may cost.
        seed: Another seed gives other models.

    Returns:
        For each model its recipes by ascending batch, and its cost in 10^9 multiply-accumulates.

    Raises:
        RuntimeError: where the family has too few different models within the limits: a fault of this package.
    """
    rng = seeded(collection, family, seed)
    needed = -(-recipes // models)
    if not models <= recipes <= _MOST_BATCHES * models:
        raise RuntimeError(f"{recipes} recipes cannot be shared out among {models} models of {family}.")
    drawn: dict[str, tuple[Draw, tuple[int, ...]]] = {}
    for _ in range(_MOST_TRIES * models):
        if len(drawn) == models:
            break
        draw = sampler(rng, reach)
        batches = limits.feasible(draw.cost)
        if len(batches) >= needed:
            drawn.setdefault(_recipe(draw, collection, family, batch=1).model_key, (draw, batches))
    else:
        raise RuntimeError(f"{collection}/{family} gave only {len(drawn)} of {models} models within its limits.")
    shares = _share_out(rng, [min(len(batches), _MOST_BATCHES) for _, batches in drawn.values()], total=recipes)
    return [
        (
            tuple(_recipe(draw, collection, family, batch=batch) for batch in sorted(rng.sample(batches, share))),
            draw.cost.gmacs,
        )
        for (draw, batches), share in zip(drawn.values(), shares, strict=True)
    ]


def _recipe(draw: Draw, collection: str, family: str, *, batch: int) -> Recipe:
    return Recipe(
        collection=collection,
        family=family,
        architecture=draw.architecture,
        arguments=draw.arguments,
        inputs=draw.inputs,
        batch=batch,
    )


def _share_out(rng: random.Random, capacities: Sequence[int], *, total: int) -> list[int]:
    least = min(3, total // len(capacities))
    shares = [min(least, capacity) for capacity in capacities]
    open_places = [place for place, share in enumerate(shares) if share < capacities[place]]
    for _ in range(total - sum(shares)):
        choice = rng.randrange(len(open_places))
        place = open_places[choice]
        shares[place] += 1
        if shares[place] == capacities[place]:
            open_places[choice] = open_places[-1]
            open_places.pop()
    return shares
