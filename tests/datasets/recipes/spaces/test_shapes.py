from __future__ import annotations

import pytest

from dippm.datasets.recipes.spaces.shapes import image, round_channels, size_after


@pytest.mark.parametrize(
    ("channels", "divisor", "rounded"),
    [(64, 8, 64), (67.9, 8, 64), (68, 8, 72), (1, 8, 8), (0, 16, 16), (25, 4, 24), (26, 4, 28)],
)
def test_channels_are_the_nearest_multiple_and_never_none(channels: float, divisor: int, rounded: int) -> None:
    assert round_channels(channels, divisor=divisor) == rounded


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "after"),
    [(224, 7, 2, 3, 112), (112, 3, 2, 1, 56), (224, 11, 4, 0, 54), (5, 1, 1, 0, 5), (4, 5, 1, 0, 0)],
)
def test_sizes_after_a_layer(size: int, kernel: int, stride: int, padding: int, after: int) -> None:
    assert size_after(size, kernel, stride=stride, padding=padding) == after


def test_an_image_is_the_only_input() -> None:
    (entry,) = image(3, 20, 30).positional
    assert (entry.shape, entry.dtype) == ((3, 20, 30), None)
