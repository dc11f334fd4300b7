from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from dippm.datasets.recipes.architectures.vgg import VGG  # noqa: E402


def test_vgg16_counts_as_in_its_paper(parameters: Callable[[torch.nn.Module], int]) -> None:
    module = VGG(convolutions=(2, 2, 3, 3, 3), in_chans=3, height=224, width=224)
    assert parameters(module) == 138357544
    assert module(torch.empty(2, 3, 224, 224)).shape == (2, 1000)
