"""What holds for the draws of every space."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from dippm.datasets.recipes import dippm_zoo, small
from dippm.datasets.recipes.building import build
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.recipes.sampling import Draw, Sampler, seeded


@pytest.fixture
def draws() -> Callable[..., list[Draw]]:
    """Models that a sampler draws, as large as those of the zoo or as toys."""

    def draw(sampler: Sampler, *, count: int = 30, is_small: bool = False) -> list[Draw]:
        reach = small.REACH if is_small else dippm_zoo.REACH
        rng = seeded("draws", is_small)
        return [sampler(rng, reach) for _ in range(count)]

    return draw


@pytest.fixture
def module_of() -> Callable[[Draw], Any]:
    """The module of a draw, without memory."""
    if any(find_spec(package) is None for package in ("torch", "timm", "torchvision", "transformers")):
        pytest.skip("needs torch, timm, torchvision and transformers")

    def make(draw: Draw) -> Any:
        recipe = Recipe(
            collection="test",
            family="test",
            architecture=draw.architecture,
            arguments=draw.arguments,
            inputs=draw.inputs,
            batch=1,
        )
        return build(recipe)[0]

    return make


@pytest.fixture
def check_sampler(draws: Callable[..., list[Draw]], module_of: Callable[[Draw], Any]) -> Callable[..., None]:
    """Draws are plain data, follow from the seed, differ, are smaller where toys are asked for, and are what was built.

    Weights are counted without biases and norms, so that those of a module are a little more.
    """

    def check(sampler: Sampler, *, near: tuple[float, float] = (0.9, 1.1)) -> None:
        large, toys = draws(sampler), draws(sampler, is_small=True)
        assert large == draws(sampler)
        assert len({json.dumps(dict(draw.arguments), sort_keys=True) + repr(draw.inputs) for draw in large}) >= 25
        means = [sum(draw.cost.gmacs for draw in found) for found in (toys, large)]
        assert 0 < means[0] < means[1]
        for draw in large[:2]:
            weights = sum(tensor.numel() for tensor in module_of(draw).parameters()) / 1e6
            assert near[0] <= draw.cost.parameters_m / weights <= near[1], (draw, weights)

    return check
