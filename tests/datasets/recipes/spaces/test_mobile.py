from __future__ import annotations

from collections.abc import Callable

import pytest

from dippm.datasets.recipes.sampling import Draw, Sampler
from dippm.datasets.recipes.spaces.mobile import (
    MOBILENET_V1,
    MOBILENET_V2,
    Stage,
    estimate,
    sample_efficientnet,
    sample_mnasnet,
    sample_mobilenet,
    widen,
)


@pytest.mark.parametrize("sampler", [sample_efficientnet, sample_mnasnet, sample_mobilenet])
def test_draws(check_sampler: Callable[..., None], sampler: Sampler) -> None:
    check_sampler(sampler, near=(0.5, 1.2))


@pytest.mark.parametrize(
    ("stages", "features", "gmacs", "millions"),
    [(MOBILENET_V1, 0, 0.569, 4.2), (MOBILENET_V2, 1280, 0.300, 3.4)],
)
def test_mobilenets_cost_what_their_papers_say(
    stages: tuple[Stage, ...], features: int, gmacs: float, millions: float
) -> None:
    cost = estimate(stages, stem=32, features=features, channels=3, height=224, width=224)
    assert cost.gmacs == pytest.approx(gmacs, rel=0.03)
    assert cost.parameters_m == pytest.approx(millions, rel=0.03)


def test_a_stage_is_written_as_timm_reads_it() -> None:
    stage = Stage(kind="ir", repeats=2, kernel=3, stride=2, expansion=6, channels=24, has_squeeze=True)
    assert str(stage) == "ir_r2_k3_s2_e6_c24_se0.25"
    assert str(MOBILENET_V1[0]) == "dsa_r1_k3_s1_c64"


def test_widening_changes_channels_alone() -> None:
    half = widen(MOBILENET_V2, 0.5)
    assert [stage.channels for stage in half] == [8, 16, 16, 32, 48, 80, 160]
    assert widen(half, 2) != MOBILENET_V2  # rounding is not undone
    assert [(stage.repeats, stage.stride) for stage in half] == [
        (stage.repeats, stage.stride) for stage in MOBILENET_V2
    ]


def test_fused_blocks_and_squeezes_come_where_efficientnet_has_them(draws: Callable[..., list[Draw]]) -> None:
    kinds = [
        {block.split("_")[0] for block in draw.arguments["blocks"]} for draw in draws(sample_efficientnet, count=60)
    ]
    assert {frozenset(found) for found in kinds} == {frozenset({"ds", "ir"}), frozenset({"er", "ir"})}
    assert 5 < sum("er" in found for found in kinds) < 30
