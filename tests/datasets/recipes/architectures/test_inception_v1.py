from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from dippm.datasets.recipes.architectures.inception_v1 import InceptionV1  # noqa: E402


def test_inception_v1_has_seven_million_weights(parameters: Callable[[torch.nn.Module], int]) -> None:
    module = InceptionV1(in_chans=3)
    assert parameters(module) / 1e6 == pytest.approx(7.0, rel=0.01)
    assert module.features(torch.empty(2, 3, 224, 224)).shape == (2, 1024, 7, 7)
