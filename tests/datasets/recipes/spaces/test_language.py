from __future__ import annotations

from collections.abc import Callable

import pytest

from dippm.datasets.recipes.sampling import Draw, Sampler
from dippm.datasets.recipes.spaces.language import sample_bert, sample_gpt2, sample_llama, sample_vit
from dippm.graph import DType


@pytest.mark.parametrize("sampler", [sample_bert, sample_gpt2, sample_llama, sample_vit])
def test_draws(check_sampler: Callable[..., None], sampler: Sampler) -> None:
    # A head shares its table with the embedding in some of them, and position tables are not counted.
    check_sampler(sampler, near=(0.7, 1.5))


@pytest.mark.parametrize("sampler", [sample_bert, sample_gpt2, sample_llama])
@pytest.mark.parametrize("is_small", [True, False])
def test_a_text_fits_the_positions_and_the_heads_the_width(
    draws: Callable[..., list[Draw]], sampler: Sampler, is_small: bool
) -> None:
    for draw in draws(sampler, is_small=is_small):
        values = draw.arguments
        (entry,) = (draw.inputs.named or {}).values()
        assert entry.dtype is DType.INT64
        assert entry.shape[0] <= values["positions"]
        assert values["hidden"] % values["heads"] == 0
        assert values["intermediate"] % 16 == 0
        if sampler is sample_llama:
            assert values["heads"] % values["key_value_heads"] == 0
        if entry.shape[0] >= 2048:  # a wide model at such a length leaves no room for a second sample
            assert values["hidden"] <= 512 * 1.5 + 128


def test_the_image_of_vit_is_a_multiple_of_the_patch(draws: Callable[..., list[Draw]]) -> None:
    for draw in draws(sample_vit):
        assert draw.arguments["image_size"] % draw.arguments["patch_size"] == 0
        assert draw.inputs.positional[0].shape[1:] == 2 * (draw.arguments["image_size"],)
