from __future__ import annotations

from collections.abc import Callable

import pytest

from dippm.datasets.recipes.sampling import Draw
from dippm.datasets.recipes.spaces.dense_vision import sample_detector, sample_unet


def test_draws_of_unet(check_sampler: Callable[..., None]) -> None:
    check_sampler(sample_unet)


def test_draws_of_detectors(check_sampler: Callable[..., None]) -> None:
    check_sampler(sample_detector, near=(0.7, 1.4))


@pytest.mark.parametrize("is_small", [True, False])
def test_sides_can_be_halved_as_often_as_the_network_does(draws: Callable[..., list[Draw]], is_small: bool) -> None:
    for draw in draws(sample_unet, is_small=is_small):
        size = draw.inputs.positional[0].shape[1]
        assert size % 2 ** (draw.arguments["levels"] - 1) == 0
    for draw in draws(sample_detector, is_small=is_small):
        assert all(size % 32 == 0 for size in draw.inputs.positional[0].shape[1:])
