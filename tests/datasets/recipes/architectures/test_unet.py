from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from dippm.datasets.recipes.architectures.unet import UNet  # noqa: E402


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("levels", [2, 4])
def test_unet_keeps_the_size_of_the_image(transposed: bool, levels: int) -> None:
    module = UNet(channels=8, levels=levels, convolutions=2, transposed=transposed, in_chans=3, classes=5)
    assert module(torch.empty(2, 3, 32, 48)).shape == (2, 5, 32, 48)
