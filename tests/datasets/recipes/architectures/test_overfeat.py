from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from dippm.datasets.recipes.architectures.overfeat import OverFeat  # noqa: E402


def test_fully_connected_layers_follow_the_image(parameters: Callable[[torch.nn.Module], int]) -> None:
    module = OverFeat(in_chans=3, height=231, width=231)
    assert parameters(module) / 1e6 == pytest.approx(145.0, rel=0.02)
    tall = OverFeat(in_chans=5, height=75, width=231 + 13)
    assert tall(torch.empty(2, 5, 75, 231 + 13)).shape == (2, 1000)


def test_all_channels_follow_the_scale() -> None:
    widths = [
        [
            layer.out_channels
            for layer in OverFeat(in_chans=3, height=96, width=96, scale=scale).features.modules()
            if isinstance(layer, torch.nn.Conv2d)
        ]
        for scale in (0.25, 1.0)
    ]
    assert widths[1] == [64, 256, 512, 1024, 1024]
    assert [4 * width for width in widths[0]] == widths[1]


def test_an_image_that_nothing_would_be_left_of_is_refused() -> None:
    with torch.device("cpu"), pytest.raises(RuntimeError):
        OverFeat(in_chans=3, height=20, width=20)(torch.zeros(1, 3, 20, 20))
