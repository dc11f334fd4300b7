from __future__ import annotations

from collections.abc import Callable

import pytest

from dippm.datasets.recipes.sampling import Draw, Sampler, Tally
from dippm.datasets.recipes.spaces.convolutional import (
    estimate_resnet,
    estimate_vgg,
    sample_convnext,
    sample_densenet,
    sample_resnet,
    sample_vgg,
)


@pytest.mark.parametrize("sampler", [sample_resnet, sample_vgg, sample_densenet, sample_convnext])
def test_draws(check_sampler: Callable[..., None], sampler: Sampler) -> None:
    check_sampler(sampler, near=(0.75, 1.25))


@pytest.mark.parametrize(
    ("block", "layers", "gmacs", "millions"),
    [("basic", (2, 2, 2, 2), 1.81, 11.7), ("bottleneck", (3, 4, 6, 3), 4.09, 25.6)],
)
def test_resnets_cost_about_what_is_published(
    block: str, layers: tuple[int, ...], gmacs: float, millions: float
) -> None:
    cost = estimate_resnet(block=block, layers=layers, channels=(64, 128, 256, 512), height=224, width=224)
    assert cost.gmacs == pytest.approx(gmacs, rel=0.06)
    assert cost.parameters_m == pytest.approx(millions, rel=0.05)


def test_groups_cost_less() -> None:
    sizes = {"layers": (3, 4, 6, 3), "channels": (64, 128, 256, 512), "height": 224, "width": 224}
    grouped = estimate_resnet(block="bottleneck", groups=32, base_width=4, **sizes)
    wide = estimate_resnet(block="bottleneck", groups=1, base_width=128, **sizes)
    assert grouped.gmacs == pytest.approx(4.2, rel=0.12)  # ResNeXt-50, 32x4d
    assert wide.gmacs > 2 * grouped.gmacs


def test_the_convolutions_of_vgg16() -> None:
    tally = Tally()
    estimate_vgg(tally, (2, 2, 3, 3, 3), (64, 128, 256, 512, 512), inputs=3, height=224, width=224)
    # 15.47 in all, 0.124 of them in the fully connected layers; 14.71 million weights.
    assert tally.result().gmacs == pytest.approx(15.47 - 0.124, rel=0.002)
    assert tally.result().parameters_m == pytest.approx(14.71, rel=0.002)


def test_four_stages_double_their_channels(draws: Callable[..., list[Draw]]) -> None:
    for draw in draws(sample_convnext):
        first = draw.arguments["dims"][0]
        assert draw.arguments["dims"] == tuple(first * 2**stage for stage in range(4))
    for draw in draws(sample_vgg):
        assert max(draw.arguments["convolutions"]) <= 6
