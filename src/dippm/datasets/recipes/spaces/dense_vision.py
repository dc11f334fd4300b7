"""Networks that answer for every pixel or place: U-Net and one-stage detectors."""

from __future__ import annotations

import random

from dippm.datasets.recipes.sampling import Draw, Reach, Tally
from dippm.datasets.recipes.spaces.shapes import image, round_channels

__all__ = ["sample_detector", "sample_unet"]

_ANCHORS = 9
_BOX = 4


def sample_unet(rng: random.Random, reach: Reach) -> Draw:
    """U-Net of three to five levels, rising by transposed convolution or by interpolation."""
    size = reach.draw_size(rng)
    channels = round_channels(rng.choice((16, 32, 64)) * reach.draw_width(rng))
    levels = rng.randint(2, 3) if reach.is_small else rng.randint(3, 5)
    convolutions = rng.randint(1, 3)
    in_chans, classes = rng.choice((1, 3, 4)), rng.choice((1, 2, 21))
    tally = Tally()
    inputs = in_chans
    for level in range(levels):
        width, positions = channels * 2**level, size * size / 4**level
        tally.conv(inputs, width, 3, positions)
        tally.conv(width, width, 3, positions, repeats=convolutions - 1)
        if level < levels - 1:
            tally.conv(2 * width, width, 1, positions)
            tally.conv(2 * width, width, 3, positions)
            tally.conv(width, width, 3, positions, repeats=convolutions - 1)
        inputs = width
    return Draw(
        architecture="dippm:unet",
        arguments={
            "channels": channels,
            "levels": levels,
            "convolutions": convolutions,
            "transposed": rng.random() < 0.5,
            "in_chans": in_chans,
            "classes": classes,
        },
        inputs=image(in_chans, size, size),
        cost=tally.result(),
    )


def sample_detector(rng: random.Random, reach: Reach) -> Draw:
    """ResNet with a feature pyramid, with or without the heads of a one-stage detector."""
    # Detectors see larger images than classifiers, of any proportion; sides stay multiples of the coarsest stride.
    factor = 1 if reach.is_small else 2
    height, width = factor * reach.draw_size(rng), factor * reach.draw_size(rng)
    block = rng.choice(("basic", "bottleneck"))
    layers = reach.draw_depths(rng, (2, 2, 2, 2) if block == "basic" else (3, 4, 6, 3))
    first = round_channels(64 * reach.draw_width(rng))
    channels = tuple(first * 2**stage for stage in range(4))
    pyramid = round_channels(rng.choice((128, 256)) * min(1.0, reach.draw_width(rng)), divisor=16)
    head_layers = rng.choice((0, 2, 4))
    classes = rng.choice((20, 80))
    tally = Tally()
    positions = height * width / 4
    tally.conv(3, 64, 7, positions)
    positions /= 4
    inputs = 64
    expansion = 1 if block == "basic" else 4
    for stage, (depth, planes) in enumerate(zip(layers, channels, strict=True)):
        if stage:
            positions /= 4
        if block == "basic":
            tally.conv(planes, planes, 3, positions, repeats=2 * depth)
        else:
            tally.conv(inputs, planes, 1, positions)
            tally.conv(4 * planes, planes, 1, positions, repeats=2 * depth - 1)
            tally.conv(planes, planes, 3, positions, repeats=depth)
        inputs = planes * expansion
        if stage:
            tally.conv(inputs, pyramid, 1, positions)
            tally.conv(pyramid, pyramid, 3, positions, repeats=1 + 2 * head_layers)
            if head_layers:
                tally.conv(pyramid, _ANCHORS * (classes + _BOX), 3, positions)
    return Draw(
        architecture="dippm:detector",
        arguments={
            "block": block,
            "layers": layers,
            "channels": channels,
            "pyramid": pyramid,
            "head_layers": head_layers,
            "anchors": _ANCHORS,
            "classes": classes,
        },
        inputs=image(3, height, width),
        cost=tally.result(),
    )
