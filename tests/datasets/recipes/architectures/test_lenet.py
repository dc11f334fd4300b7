from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from dippm.datasets.recipes.architectures.lenet import LeNet  # noqa: E402


def test_lenet_counts_as_the_usual_one_for_digits(parameters: Callable[[torch.nn.Module], int]) -> None:
    module = LeNet(in_chans=1, height=28, width=28)
    by_hand = (25 * 32 + 32) + (25 * 32 * 64 + 64) + (7 * 7 * 64 * 1024 + 1024) + (1024 * 10 + 10)
    assert parameters(module) == by_hand == 3274634
    assert module(torch.empty(2, 1, 28, 28)).shape == (2, 10)
