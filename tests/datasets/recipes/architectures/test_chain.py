from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from dippm.datasets.recipes.architectures.chain import Chain  # noqa: E402


def test_a_chain_is_what_it_says(parameters: Callable[[torch.nn.Module], int]) -> None:
    module = Chain(
        layers=("conv:8:5:2", "pool:2", "conv:16:3:1"), dense=(32,), in_chans=3, height=30, width=22, classes=10
    )
    # 30 x 22 -> 15 x 11 -> 7 x 5 -> 7 x 5
    by_hand = (3 * 8 * 25 + 8) + (8 * 16 * 9 + 16) + (16 * 7 * 5 * 32 + 32) + (32 * 10 + 10)
    assert parameters(module) == by_hand
    assert module(torch.empty(2, 3, 30, 22)).shape == (2, 10)
    with pytest.raises(ValueError, match="dense:3"):
        Chain(layers=("dense:3",), dense=(), in_chans=3, height=8, width=8, classes=2)
