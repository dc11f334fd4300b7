"""Random searched cells, and random plain chains."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dippm.datasets.recipes.sampling import Draw, Reach, Tally
from dippm.datasets.recipes.spaces.shapes import image, round_channels, size_after

__all__ = ["sample_cells", "sample_chain"]

# Operation: kernel, dense convolutions, depthwise convolutions, pointwise convolutions.
_OPERATIONS = {
    "conv1": (1, 1, 0, 0), "conv3": (3, 1, 0, 0), "conv5": (5, 1, 0, 0),
    "separable3": (3, 0, 2, 2), "separable5": (5, 0, 2, 2), "dilated3": (3, 0, 1, 1), "dilated5": (5, 0, 1, 1),
    "maxpool": (3, 0, 0, 0), "avgpool": (3, 0, 0, 0), "skip": (1, 0, 0, 0),
}  # fmt: skip
_NAMES = tuple(_OPERATIONS)


def _draw_cell(rng: random.Random, nodes: int) -> tuple[str, ...]:
    """Each node sums two operations, on two different states before it."""
    plan = []
    for node in range(nodes):
        sources = sorted(rng.sample(range(node + 2), 2))
        plan.append("+".join(f"{source}:{rng.choice(_NAMES)}" for source in sources))
    return tuple(plan)


def _add_cell(tally: Tally, plan: Sequence[str], *, before: int, inputs: int, channels: int, positions: float) -> None:
    tally.conv(before, channels, 1, positions)
    tally.conv(inputs, channels, 1, positions)
    for node in plan:
        for edge in node.split("+"):
            kernel, dense, depthwise, pointwise = _OPERATIONS[edge.partition(":")[2]]
            tally.conv(channels, channels, kernel, positions, repeats=dense)
            tally.conv(channels, channels, kernel, positions, groups=channels, repeats=depthwise)
            tally.conv(channels, channels, 1, positions, repeats=pointwise)
            tally.keep(channels, positions)


def sample_cells(rng: random.Random, reach: Reach) -> Draw:
    """A network of normal and reduction cells."""
    # Cells do not shrink the image before their first reduction: toys of them take half the size.
    size = rng.choice(reach.sizes) // (2 if reach.is_small else 1)
    nodes = rng.randint(2, 3 if reach.is_small else 5)
    normal, reduction = _draw_cell(rng, nodes), _draw_cell(rng, nodes)
    cells = rng.randint(1, 1 if reach.is_small else 5)
    stages = rng.randint(2, 3)
    channels = round_channels(rng.choice((16, 24, 32, 48)) * reach.draw_width(rng), divisor=4)
    dense = tuple(rng.choice((64, 128, 256, 512)) for _ in range(rng.randint(0, 2)))
    in_chans = rng.choice((1, 3, 3, 4))
    tally = Tally()
    positions = float(size * size)
    before = inputs = 2 * channels
    tally.conv(in_chans, inputs, 3, positions)
    for stage in range(stages):
        width = channels * 2**stage
        for place in range(cells + (stage > 0)):
            is_reduction = stage > 0 and place == 0
            if is_reduction:
                positions /= 4
            plan = reduction if is_reduction else normal
            _add_cell(tally, plan, before=before, inputs=inputs, channels=width, positions=positions)
            before, inputs = inputs, width * nodes
    return Draw(
        architecture="dnnperf:cells",
        arguments={
            "normal": normal,
            "reduction": reduction,
            "stages": stages,
            "cells": cells,
            "channels": channels,
            "dense": dense,
            "in_chans": in_chans,
            "classes": rng.choice((10, 100, 1000)),
        },
        inputs=image(in_chans, size, size),
        cost=tally.result(),
    )


def sample_chain(rng: random.Random, reach: Reach) -> Draw:
    """A chain of convolutions and poolings, and fully connected layers behind."""
    in_chans = rng.choice((1, 3, 3, 4))
    height, width = rng.choice(reach.sizes), rng.choice(reach.sizes)
    tally = Tally()
    layers: list[str] = []
    rows, columns, inputs = height, width, in_chans
    outputs = round_channels(rng.choice((16, 32, 64)) * reach.draw_width(rng), divisor=4)
    for _ in range(rng.randint(2, 4 if reach.is_small else 12)):
        kernel = rng.choice((1, 3, 3, 5, 7))
        stride = rng.choice((1, 1, 2)) if min(rows, columns) >= 16 else 1
        layers.append(f"conv:{outputs}:{kernel}:{stride}")
        rows = size_after(rows, kernel, stride=stride, padding=kernel // 2)
        columns = size_after(columns, kernel, stride=stride, padding=kernel // 2)
        tally.conv(inputs, outputs, kernel, rows * columns)
        inputs = outputs
        if min(rows, columns) >= 8 and rng.random() < 0.4:
            pool = rng.choice((2, 2, 3))
            layers.append(f"pool:{pool}")
            rows, columns = size_after(rows, pool, stride=pool), size_after(columns, pool, stride=pool)
            outputs = min(1024, rng.choice((outputs, 2 * outputs)))
    dense = tuple(2 ** rng.randint(5, 7 if reach.is_small else 11) for _ in range(rng.randint(0, 3)))
    classes = rng.choice((10, 100, 1000))
    features = inputs * rows * columns
    for size in (*dense, classes):
        tally.linear(features, size)
        features = size
    return Draw(
        architecture="dnnperf:chain",
        arguments={
            "layers": tuple(layers),
            "dense": dense,
            "in_chans": in_chans,
            "height": height,
            "width": width,
            "classes": classes,
        },
        inputs=image(in_chans, height, width),
        cost=tally.result(),
    )
