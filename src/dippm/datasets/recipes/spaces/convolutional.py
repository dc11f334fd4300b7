"""ResNet, VGG, DenseNet and ConvNeXt."""

from __future__ import annotations

import random

from dippm.datasets.recipes.sampling import Cost, Draw, Reach, Tally
from dippm.datasets.recipes.spaces.shapes import image, round_channels

__all__ = ["estimate_resnet", "estimate_vgg", "sample_convnext", "sample_densenet", "sample_resnet", "sample_vgg"]

_VGG_CONVOLUTIONS = ((1, 1, 2, 2, 2), (2, 2, 2, 2, 2), (2, 2, 3, 3, 3), (2, 2, 4, 4, 4))
_VGG_HEAD = 4096
_DENSENET_BLOCKS = ((6, 12, 24, 16), (6, 12, 32, 32), (6, 12, 36, 24), (6, 12, 48, 32))


def sample_resnet(rng: random.Random, reach: Reach) -> Draw:
    """ResNet with plain, bottleneck or grouped (ResNeXt) blocks, wide or narrow, three stems."""
    block = rng.choice(("basic", "bottleneck", "bottleneck"))
    usual = rng.choice(((2, 2, 2, 2), (3, 4, 6, 3))) if block == "basic" else rng.choice(((3, 4, 6, 3), (3, 4, 23, 3)))
    size, width = reach.draw_size(rng), reach.draw_width(rng)
    groups, base_width = (
        rng.choice(((1, 64), (1, 64), (1, 128), (32, 4), (64, 4))) if block == "bottleneck" else (1, 64)
    )
    # Groups times channels per group must not vanish in a narrow first stage.
    channels = tuple(round_channels(64 * width * 2**stage, divisor=16) for stage in range(4))
    layers = reach.draw_depths(rng, usual)
    stem = rng.choice(("", "", "deep"))
    stem_width = rng.choice((32, 64)) if stem == "" else rng.choice((16, 32))
    has_squeeze = rng.random() < 0.2
    return Draw(
        architecture="timm:resnet",
        arguments={
            "block": block,
            "layers": layers,
            "channels": channels,
            "cardinality": groups,
            "base_width": base_width,
            "stem_type": stem,
            "stem_width": stem_width,
            "avg_down": rng.random() < 0.3,
            "squeeze": has_squeeze,
        },
        inputs=image(3, size, size),
        cost=estimate_resnet(
            block=block, layers=layers, channels=channels, groups=groups, base_width=base_width, height=size, width=size
        ),
    )


def estimate_resnet(
    *,
    block: str,
    layers: tuple[int, ...],
    channels: tuple[int, ...],
    height: int,
    width: int,
    groups: int = 1,
    base_width: int = 64,
    inputs: int = 3,
) -> Cost:
    """Rough cost of a ResNet of either kind of block."""
    tally = Tally()
    positions = height * width / 4
    tally.conv(inputs, 64, 7, positions)
    positions /= 4
    previous = 64
    for stage, (repeats, planes) in enumerate(zip(layers, channels, strict=True)):
        if stage:
            positions /= 4
        outputs = planes if block == "basic" else planes * 4
        inner = planes if block == "basic" else planes * base_width // 64 * groups
        tally.conv(previous, outputs, 1, positions)
        for _ in range(repeats):
            if block == "basic":
                tally.conv(previous, outputs, 3, positions)
                tally.conv(outputs, outputs, 3, positions)
            else:
                tally.conv(previous, inner, 1, positions)
                tally.conv(inner, inner, 3, positions, groups=groups)
                tally.conv(inner, outputs, 1, positions)
            previous = outputs
    tally.linear(previous, 1000)
    return tally.result()


def sample_vgg(rng: random.Random, reach: Reach) -> Draw:
    """VGG of 11 to 19 layers and between, with or without batch normalisation, with heads of three sizes."""
    usual = rng.choice(_VGG_CONVOLUTIONS)
    size, width = reach.draw_size(rng), reach.draw_width(rng)
    convolutions = tuple(min(6, count) for count in reach.draw_depths(rng, usual))
    channels = tuple(round_channels(64 * width * factor, divisor=16) for factor in (1, 2, 4, 8, 8))
    ratio = 0.0625 if reach.is_small else rng.choice((0.25, 0.5, 1.0))
    tally = Tally()
    estimate_vgg(tally, convolutions, channels, inputs=3, height=size, width=size)
    head_positions = max(1, size // 32 - 6) ** 2
    tally.conv(channels[-1], int(_VGG_HEAD * ratio), 7, head_positions)
    tally.conv(int(_VGG_HEAD * ratio), _VGG_HEAD, 1, head_positions)
    return Draw(
        architecture="timm:vgg",
        arguments={
            "convolutions": convolutions,
            "channels": channels,
            "mlp_ratio": ratio,
            "batch_norm": rng.random() < 0.5,
        },
        inputs=image(3, size, size),
        cost=tally.result(),
    )


def estimate_vgg(
    tally: Tally, convolutions: tuple[int, ...], channels: tuple[int, ...], *, inputs: int, height: int, width: int
) -> None:
    """Add VGG's convolutions to a tally."""
    positions = float(height * width)
    for count, outputs in zip(convolutions, channels, strict=True):
        tally.conv(inputs, outputs, 3, positions)
        tally.conv(outputs, outputs, 3, positions, repeats=count - 1)
        inputs, positions = outputs, positions / 4


def sample_densenet(rng: random.Random, reach: Reach) -> Draw:
    """DenseNet with other growth rates, bottlenecks, block sizes and stems."""
    size = reach.draw_size(rng)
    growth = round_channels(32 * reach.draw_width(rng), divisor=4)
    blocks = reach.draw_depths(rng, rng.choice(_DENSENET_BLOCKS))
    bottleneck = rng.choice((2, 4, 4))
    tally = Tally()
    positions = size * size / 4
    channels = 2 * growth
    tally.conv(3, channels, 7, positions)
    positions /= 4
    for place, layers in enumerate(blocks):
        for _ in range(layers):
            # Each layer concatenates and normalises all channels before it: more is kept than its own output.
            tally.conv(channels, bottleneck * growth, 1, positions)
            tally.conv(bottleneck * growth, growth, 3, positions)
            tally.keep(channels, positions)
            channels += growth
        if place < len(blocks) - 1:
            tally.conv(channels, channels // 2, 1, positions)
            channels, positions = channels // 2, positions / 4
    tally.linear(channels, 1000)
    return Draw(
        architecture="timm:densenet",
        arguments={
            "growth_rate": growth,
            "block_config": blocks,
            "bn_size": bottleneck,
            "stem_type": rng.choice(("", "", "deep", "deep_tiered")),
        },
        inputs=image(3, size, size),
        cost=tally.result(),
    )


def sample_convnext(rng: random.Random, reach: Reach) -> Draw:
    """ConvNeXt of version 1 or 2, with kernels of 5 to 9."""
    size, width = reach.draw_size(rng), reach.draw_width(rng)
    depths = reach.draw_depths(rng, rng.choice(((3, 3, 9, 3), (2, 2, 6, 2), (3, 3, 27, 3))))
    dims = tuple(round_channels(96 * width) * 2**stage for stage in range(4))
    kernel = rng.choice((5, 7, 7, 9))
    tally = Tally()
    positions = size * size / 16
    tally.conv(3, dims[0], 4, positions)
    for stage, (depth, dim) in enumerate(zip(depths, dims, strict=True)):
        if stage:
            positions /= 4
            tally.conv(dims[stage - 1], dim, 2, positions)
        tally.conv(dim, dim, kernel, positions, groups=dim, repeats=depth)
        tally.linear(dim, 4 * dim, positions, repeats=depth)
        tally.linear(4 * dim, dim, positions, repeats=depth)
    return Draw(
        architecture="timm:convnext",
        arguments={
            "depths": depths,
            "dims": dims,
            "kernel_sizes": kernel,
            "conv_mlp": rng.random() < 0.3,
            "use_grn": rng.random() < 0.3,
        },
        inputs=image(3, size, size),
        cost=tally.result(),
    )
