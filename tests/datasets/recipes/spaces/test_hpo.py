from __future__ import annotations

from collections.abc import Callable

import pytest

from dippm.datasets.recipes import dnnperf_hpo
from dippm.datasets.recipes.sampling import Draw, Sampler, seeded
from dippm.datasets.recipes.spaces import hpo


@pytest.mark.parametrize("sampler", [hpo.sample_lenet, hpo.sample_alexnet, hpo.sample_overfeat, hpo.sample_vgg])
def test_draws_of_rows_of_layers(check_sampler: Callable[..., None], sampler: Sampler) -> None:
    check_sampler(sampler, near=(0.9, 1.0))


@pytest.mark.parametrize(
    ("sampler", "near"), [(hpo.sample_resnet_v2, (0.9, 1.15)), (hpo.sample_mobilenet, (0.85, 1.1))]
)
def test_draws_of_stages(check_sampler: Callable[..., None], sampler: Sampler, near: tuple[float, float]) -> None:
    check_sampler(sampler, near=near)


@pytest.mark.parametrize(
    ("sampler", "smallest"),
    [(hpo.sample_lenet, 28), (hpo.sample_alexnet, 67), (hpo.sample_overfeat, 75), (hpo.sample_inception, 32)],
)
def test_images_are_of_any_size_that_the_network_can_take(sampler: Sampler, smallest: int) -> None:
    rng = seeded("sizes")
    shapes = [sampler(rng, dnnperf_hpo.REACH).inputs.positional[0].shape for _ in range(100)]
    assert {channels for channels, _, _ in shapes} == set(range(1, 11))
    assert all(smallest <= min(height, width) and max(height, width) <= 256 for _, height, width in shapes)
    assert sum(height != width for _, height, width in shapes) > 90


def test_a_resnet_is_given_the_channels_that_timm_asks_for(draws: Callable[..., list[Draw]]) -> None:
    inside = {draw.arguments["channels"][3] // draw.arguments["channels"][0] for draw in draws(hpo.sample_resnet_v1)}
    assert inside == {8}
    for first, second in zip(draws(hpo.sample_resnet_v1), draws(hpo.sample_resnet_v2), strict=True):
        assert tuple(4 * size for size in first.arguments["channels"]) == second.arguments["channels"]
        assert first.cost == second.cost


def test_inception_is_of_three_versions(draws: Callable[..., list[Draw]]) -> None:
    found = {draw.architecture for draw in draws(hpo.sample_inception)}
    assert found == {"dnnperf:inception_v1", "timm:inception_v3", "timm:inception_v4"}
