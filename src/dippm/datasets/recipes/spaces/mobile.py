"""EfficientNet, MnasNet and MobileNet: stacks of separable and inverted-residual blocks.

A model is given as timm's block strings, one per stage: ``ir_r2_k3_s2_e6_c24_se0.25`` is two inverted residuals with
kernel 3, stride 2 in the first, expansion 6, 24 channels out and squeeze-and-excitation.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dippm.datasets.recipes.sampling import Cost, Draw, Reach, Tally
from dippm.datasets.recipes.spaces.shapes import image, round_channels

__all__ = [
    "MOBILENET_V1",
    "MOBILENET_V2",
    "Stage",
    "estimate",
    "sample_efficientnet",
    "sample_mnasnet",
    "sample_mobilenet",
    "widen",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Blocks of one kind: ``ds`` and ``dsa`` are separable, ``ir`` inverted residual, ``er`` its fused form."""

    kind: str
    repeats: int
    kernel: int
    stride: int
    expansion: int
    channels: int
    has_squeeze: bool = False

    def __str__(self) -> str:
        expansion = f"_e{self.expansion}" if self.kind in ("ir", "er") else ""
        squeeze = "_se0.25" if self.has_squeeze else ""
        return f"{self.kind}_r{self.repeats}_k{self.kernel}_s{self.stride}{expansion}_c{self.channels}{squeeze}"


def _stages(*rows: tuple[str, int, int, int, int, int]) -> tuple[Stage, ...]:
    return tuple(
        Stage(kind=kind, repeats=repeats, kernel=kernel, stride=stride, expansion=expansion, channels=channels)
        for kind, repeats, kernel, stride, expansion, channels in rows
    )


# kind, repeats, kernel, stride, expansion, channels: the networks' own papers, tables of their architectures.
_EFFICIENTNET = _stages(
    ("ds", 1, 3, 1, 1, 16), ("ir", 2, 3, 2, 6, 24), ("ir", 2, 5, 2, 6, 40), ("ir", 3, 3, 2, 6, 80),
    ("ir", 3, 5, 1, 6, 112), ("ir", 4, 5, 2, 6, 192), ("ir", 1, 3, 1, 6, 320),
)  # fmt: skip
_EFFICIENTNET_V2 = _stages(
    ("er", 2, 3, 1, 1, 24), ("er", 4, 3, 2, 4, 48), ("er", 4, 3, 2, 4, 64), ("ir", 6, 3, 2, 4, 128),
    ("ir", 9, 3, 1, 6, 160), ("ir", 12, 3, 2, 6, 256),
)  # fmt: skip
_MNASNET = _stages(
    ("ds", 1, 3, 1, 1, 16), ("ir", 2, 3, 2, 6, 24), ("ir", 3, 5, 2, 3, 40), ("ir", 4, 3, 2, 6, 80),
    ("ir", 2, 3, 1, 6, 112), ("ir", 3, 5, 2, 6, 160), ("ir", 1, 3, 1, 6, 320),
)  # fmt: skip
MOBILENET_V1 = _stages(
    ("dsa", 1, 3, 1, 1, 64), ("dsa", 2, 3, 2, 1, 128), ("dsa", 2, 3, 2, 1, 256), ("dsa", 6, 3, 2, 1, 512),
    ("dsa", 2, 3, 2, 1, 1024),
)  # fmt: skip
MOBILENET_V2 = _stages(
    ("ds", 1, 3, 1, 1, 16), ("ir", 2, 3, 2, 6, 24), ("ir", 3, 3, 2, 6, 32), ("ir", 4, 3, 2, 6, 64),
    ("ir", 3, 3, 1, 6, 96), ("ir", 3, 3, 2, 6, 160), ("ir", 1, 3, 1, 6, 320),
)  # fmt: skip
_MOBILENET_V3 = _stages(
    ("ds", 1, 3, 1, 1, 16), ("ir", 2, 3, 2, 4, 24), ("ir", 3, 5, 2, 3, 40), ("ir", 4, 3, 2, 4, 80),
    ("ir", 2, 3, 1, 6, 112), ("ir", 3, 5, 2, 6, 160),
)  # fmt: skip


def sample_efficientnet(rng: random.Random, reach: Reach) -> Draw:
    """EfficientNet, version 1 or, in one of four, version 2 with fused blocks."""
    is_fused = rng.random() < 0.25
    squeezes = [False] * 3 + [True] * 3 if is_fused else [rng.random() < 0.9] * 7
    return _draw(
        rng,
        reach,
        base=_EFFICIENTNET_V2 if is_fused else _EFFICIENTNET,
        squeezes=squeezes,
        kernels=(3,) if is_fused else (3, 5),
        features=1280,
        stem=24 if is_fused else 32,
        act=rng.choice(("silu", "silu", "relu")),
    )


def sample_mnasnet(rng: random.Random, reach: Reach) -> Draw:
    """MnasNet with kernels, expansions and squeeze-and-excitation redrawn for each stage."""
    squeezes = [rng.random() < 0.4 for _ in _MNASNET]
    return _draw(rng, reach, base=_MNASNET, squeezes=squeezes, kernels=(3, 5, 7), features=1280, stem=32, act="relu")


def sample_mobilenet(rng: random.Random, reach: Reach) -> Draw:
    """MobileNet of version 1, 2 or 3."""
    version = rng.choice((1, 2, 3))
    if version == 1:
        return _draw(rng, reach, base=MOBILENET_V1, squeezes=[False] * 5, kernels=(3,), features=0, stem=32)
    if version == 2:
        return _draw(rng, reach, base=MOBILENET_V2, squeezes=[False] * 7, kernels=(3,), features=1280, stem=32)
    squeezes = [rng.random() < 0.5 for _ in _MOBILENET_V3]
    return _draw(
        rng,
        reach,
        base=_MOBILENET_V3,
        squeezes=squeezes,
        kernels=(3, 5),
        features=1280,
        stem=16,
        act="hard_swish",
        architecture="timm:mobilenetv3",
    )


def _draw(
    rng: random.Random,
    reach: Reach,
    *,
    base: tuple[Stage, ...],
    squeezes: Sequence[bool],
    kernels: tuple[int, ...],
    features: int,
    stem: int,
    act: str = "relu6",
    architecture: str = "timm:efficientnet",
) -> Draw:
    size, width = reach.draw_size(rng), reach.draw_width(rng)
    depths = reach.draw_depths(rng, [stage.repeats for stage in base])
    stages = tuple(
        Stage(
            kind=stage.kind,
            repeats=repeats,
            kernel=rng.choice((stage.kernel, *kernels)),
            stride=stage.stride,
            expansion=stage.expansion if stage.expansion == 1 else rng.choice((stage.expansion, 3, 4, 6)),
            channels=round_channels(stage.channels * width),
            has_squeeze=has_squeeze,
        )
        for stage, repeats, has_squeeze in zip(base, depths, squeezes, strict=True)
    )
    stem = round_channels(stem * width)
    features = features and round_channels(features * max(width, 0.25))
    return Draw(
        architecture=architecture,
        arguments={
            "blocks": tuple(str(stage) for stage in stages),
            "stem_size": stem,
            "num_features": features,
            "act_layer": act,
        },
        inputs=image(3, size, size),
        cost=estimate(stages, stem=stem, features=features, channels=3, height=size, width=size),
    )


def widen(stages: tuple[Stage, ...], factor: float) -> tuple[Stage, ...]:
    """The same stages with their channels multiplied."""
    return tuple(replace(stage, channels=round_channels(stage.channels * factor)) for stage in stages)


def estimate(stages: tuple[Stage, ...], *, stem: int, features: int, channels: int, height: int, width: int) -> Cost:
    """Rough cost of a stack of stages after a stem of stride 2."""
    tally = Tally()
    positions = height * width / 4
    tally.conv(channels, stem, 3, positions)
    inputs = stem
    for stage in stages:
        for place in range(stage.repeats):
            before = positions
            if place == 0:
                positions /= stage.stride**2
            expanded = inputs * stage.expansion
            if stage.kind == "er":
                tally.conv(inputs, expanded, stage.kernel, positions)
            else:
                if stage.expansion > 1:
                    tally.conv(inputs, expanded, 1, before)
                tally.conv(expanded, expanded, stage.kernel, positions, groups=expanded)
            if stage.has_squeeze:
                tally.linear(expanded, max(1, inputs // 4), repeats=2)
            tally.conv(expanded, stage.channels, 1, positions)
            inputs = stage.channels
    if features:
        tally.conv(inputs, features, 1, positions)
    tally.linear(features or inputs, 1000)
    return tally.result()
