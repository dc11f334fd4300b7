from __future__ import annotations

from collections.abc import Callable

import pytest

from dippm.datasets.recipes.sampling import Draw, Sampler, Tally
from dippm.datasets.recipes.spaces.attention import (
    estimate_encoder,
    sample_poolformer,
    sample_swin,
    sample_visformer,
    sample_vit,
)


@pytest.mark.parametrize("sampler", [sample_swin, sample_vit, sample_visformer, sample_poolformer])
def test_draws(check_sampler: Callable[..., None], sampler: Sampler) -> None:
    check_sampler(sampler, near=(0.8, 1.1))


def test_the_encoder_of_vit_base_by_hand() -> None:
    tally = Tally()
    estimate_encoder(tally, width=768, depth=12, tokens=197, span=197, mlp_ratio=4.0)
    cost = tally.result()
    # Queries, keys, values and their projection, 4 w^2; the MLP, 8 w^2; and the two products of attention.
    assert cost.parameters_m == pytest.approx(12 * 12 * 768**2 / 1e6)
    assert cost.gmacs == pytest.approx(12 * (12 * 768**2 * 197 + 2 * 768 * 197**2) / 1e9)


@pytest.mark.parametrize("is_small", [True, False])
def test_widths_are_multiples_of_the_heads(draws: Callable[..., list[Draw]], is_small: bool) -> None:
    for sampler in (sample_swin, sample_vit, sample_visformer):
        for draw in draws(sampler, is_small=is_small):
            heads = draw.arguments["num_heads"]
            first = heads[0] if isinstance(heads, tuple) else heads
            assert draw.arguments["embed_dim"] % first == 0
            size = draw.arguments["img_size"]
            assert draw.inputs.positional[0].shape == (3, size, size)
            assert size % draw.arguments.get("patch_size", 1) == 0


def test_stages_of_swin_have_pairs_of_blocks(draws: Callable[..., list[Draw]]) -> None:
    assert all(depth % 2 == 0 for draw in draws(sample_swin) for depth in draw.arguments["depths"])
