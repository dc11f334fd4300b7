"""The families of TensorFlow-Slim with their input varied: channels, height and width each at random."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dippm.datasets.recipes.sampling import Draw, Reach, Tally
from dippm.datasets.recipes.spaces import convolutional, mobile
from dippm.datasets.recipes.spaces.shapes import image, round_channels, size_after

__all__ = [
    "sample_alexnet",
    "sample_inception",
    "sample_inception_v1",
    "sample_lenet",
    "sample_mobilenet",
    "sample_overfeat",
    "sample_resnet_v1",
    "sample_resnet_v2",
    "sample_vgg",
]

_MOST_CHANNELS = 10
_VGG = ((1, 1, 2, 2, 2), (2, 2, 3, 3, 3), (2, 2, 4, 4, 4))
_RESNET = ((3, 4, 6, 3), (3, 4, 23, 3), (3, 8, 36, 3))
# Outputs, kernel, stride, padding of the convolutions; (0, kernel, stride, 0) is a pooling.
_LENET = ((32, 5, 1, 2), (0, 2, 2, 0), (64, 5, 1, 2), (0, 2, 2, 0))
_ALEXNET = (
    (64, 11, 4, 0), (0, 3, 2, 0), (192, 5, 1, 2), (0, 3, 2, 0),
    (384, 3, 1, 1), (384, 3, 1, 1), (256, 3, 1, 1), (0, 3, 2, 0),
)  # fmt: skip
_OVERFEAT = (
    (64, 11, 4, 0), (0, 2, 2, 0), (256, 5, 1, 0), (0, 2, 2, 0),
    (512, 3, 1, 1), (1024, 3, 1, 1), (1024, 3, 1, 1), (0, 2, 2, 0),
)  # fmt: skip
_VGG_LAYERS = {
    depths: tuple(
        layer
        for stage, count in enumerate(depths)
        for layer in (*((min(512, 64 * 2**stage), 3, 1, 1),) * count, (0, 2, 2, 0))
    )
    for depths in _VGG
}


def _draw_image(rng: random.Random, reach: Reach, *, smallest: int = 0) -> tuple[int, int, int]:
    """Channels, height and width; a family that needs more than the reach's smallest size begins at its own."""
    low = max(smallest, min(reach.sizes))
    high = max(low + 32, max(reach.sizes))
    return rng.randint(1, _MOST_CHANNELS), rng.randint(low, high), rng.randint(low, high)


def _draw_scale(rng: random.Random, reach: Reach) -> float:
    return round(reach.draw_width(rng), 3)


def _draw_row(
    rng: random.Random,
    reach: Reach,
    *,
    architecture: str,
    layers: Sequence[tuple[int, int, int, int]],
    hidden: tuple[int, ...],
    smallest: int,
    **more: tuple[int, ...],
) -> Draw:
    """A network that is a row of convolutions and poolings with fully connected layers behind."""
    channels, height, width = _draw_image(rng, reach, smallest=smallest)
    scale = _draw_scale(rng, reach)
    tally = Tally()
    inputs, rows, columns = channels, height, width
    for outputs, kernel, stride, padding in layers:
        rows = size_after(rows, kernel, stride=stride, padding=padding)
        columns = size_after(columns, kernel, stride=stride, padding=padding)
        if outputs:
            outputs = max(1, round(outputs * scale))
            tally.conv(inputs, outputs, kernel, rows * columns)
            inputs = outputs
    features = inputs * rows * columns
    for size in hidden:
        tally.linear(features, max(1, round(size * scale)))
        features = max(1, round(size * scale))
    return Draw(
        architecture=architecture,
        arguments={"in_chans": channels, "height": height, "width": width, "scale": scale, **more},
        inputs=image(channels, height, width),
        cost=tally.result(),
    )


def sample_lenet(rng: random.Random, reach: Reach) -> Draw:
    """LeNet."""
    return _draw_row(rng, reach, architecture="dnnperf:lenet", layers=_LENET, hidden=(1024,), smallest=28)


def sample_alexnet(rng: random.Random, reach: Reach) -> Draw:
    """AlexNet."""
    return _draw_row(rng, reach, architecture="dnnperf:alexnet", layers=_ALEXNET, hidden=(4096, 4096), smallest=67)


def sample_overfeat(rng: random.Random, reach: Reach) -> Draw:
    """OverFeat."""
    return _draw_row(rng, reach, architecture="dnnperf:overfeat", layers=_OVERFEAT, hidden=(3072, 4096), smallest=75)


def sample_vgg(rng: random.Random, reach: Reach) -> Draw:
    """VGG-11, VGG-16 or VGG-19."""
    depths = rng.choice(_VGG)
    return _draw_row(
        rng,
        reach,
        architecture="dnnperf:vgg",
        layers=_VGG_LAYERS[depths],
        hidden=(4096, 4096),
        smallest=32,
        convolutions=depths,
    )


def sample_inception_v1(rng: random.Random, reach: Reach) -> Draw:
    """Inception-v1."""
    channels, height, width = _draw_image(rng, reach, smallest=32)
    scale = _draw_scale(rng, reach)
    tally = Tally()
    positions = height * width
    # A stand-in for the branches of the blocks: as many 3x3 convolutions as come to about the same at each stride.
    sized = max(1, round(192 * scale))
    tally.conv(channels, sized // 3 + 1, 7, positions / 4)
    tally.conv(sized // 3 + 1, sized, 3, positions / 16)
    tally.conv(sized, sized, 3, positions / 64, repeats=3.5)
    tally.conv(2 * sized, 2 * sized, 3, positions / 256, repeats=2.0)
    tally.conv(4 * sized, 4 * sized, 2, positions / 1024, repeats=1.0)
    tally.keep(8 * sized, positions / 64)
    return Draw(
        architecture="dnnperf:inception_v1",
        arguments={"in_chans": channels, "scale": scale},
        inputs=image(channels, height, width),
        cost=tally.result(),
    )


def sample_inception(rng: random.Random, reach: Reach) -> Draw:
    """Inception-v1, v3 or v4."""
    version = rng.choice((1, 3, 4))
    if version == 1:
        return sample_inception_v1(rng, reach)
    channels, height, width = _draw_image(rng, reach, smallest=139)
    # Counted over the graph at 299 x 299; both grow with the area.
    gmacs, elements_m, parameters_m = (5.7, 9.0, 23.8) if version == 3 else (12.3, 15.0, 42.7)
    tally = Tally()
    share = height * width / 299**2
    tally.keep(int(elements_m * 1e6), share)
    tally.linear(int(parameters_m * 1e3), 1000, gmacs / parameters_m * 1e3 * share)
    return Draw(
        architecture=f"timm:inception_v{version}",
        arguments={"in_chans": channels},
        inputs=image(channels, height, width),
        cost=tally.result(),
    )


def sample_resnet_v1(rng: random.Random, reach: Reach) -> Draw:
    """ResNet-50, 101 or 152 of version 1."""
    return _draw_resnet(rng, reach, architecture="timm:resnet", expansion=1)


def sample_resnet_v2(rng: random.Random, reach: Reach) -> Draw:
    """ResNet-50, 101 or 152 of version 2."""
    return _draw_resnet(rng, reach, architecture="timm:resnetv2", expansion=4)


def _draw_resnet(rng: random.Random, reach: Reach, *, architecture: str, expansion: int) -> Draw:
    layers = (1, 1, 1, 1) if reach.is_small else rng.choice(_RESNET)
    first = round_channels(64 * reach.draw_width(rng))
    planes = tuple(first * 2**stage for stage in range(4))
    channels, height, width = _draw_image(rng, reach, smallest=32)
    # timm gives version 1 the channels inside a block and version 2 those between blocks.
    return Draw(
        architecture=architecture,
        arguments={
            **({"block": "bottleneck"} if expansion == 1 else {}),
            "layers": layers,
            "channels": tuple(size * expansion for size in planes),
            "in_chans": channels,
        },
        inputs=image(channels, height, width),
        cost=convolutional.estimate_resnet(
            block="bottleneck", layers=layers, channels=planes, height=height, width=width, inputs=channels
        ),
    )


def sample_mobilenet(rng: random.Random, reach: Reach) -> Draw:
    """MobileNet-v1 or v2 at the widths that Slim had."""
    stages, features = rng.choice(((mobile.MOBILENET_V1, 0), (mobile.MOBILENET_V2, 1280)))
    factor = reach.draw_width(rng) if reach.is_small else rng.choice((0.5, 0.75, 1.0, 1.4))
    stages = mobile.widen(stages, factor)
    stem = round_channels(32 * factor)
    channels, height, width = _draw_image(rng, reach, smallest=32)
    return Draw(
        architecture="timm:efficientnet",
        arguments={
            "blocks": tuple(str(stage) for stage in stages),
            "stem_size": stem,
            "num_features": features,
            "act_layer": "relu6",
            "in_chans": channels,
        },
        inputs=image(channels, height, width),
        cost=mobile.estimate(stages, stem=stem, features=features, channels=channels, height=height, width=width),
    )
