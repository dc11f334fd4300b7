"""Which inputs a part of a model takes, and how many features it makes of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.frontends.inputs import InputEntry  # noqa: E402
from dippm.frontends.transformers_trials import count_features, first_taken  # noqa: E402


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.linear(x)

    def decide(self, x: Any) -> Any:
        return self.linear(x) if x.sum() > 0 else x


def test_the_first_way_that_fits_is_taken() -> None:
    layer = Layer()
    wrong, right, also = ({"x": InputEntry(shape=(size,))} for size in (3, 4, 4))
    way, result = first_taken(layer, layer.forward, [wrong, right, also])
    assert way is right
    assert result.shape == (1, 2)
    assert first_taken(layer, layer.forward, [wrong]) == ({}, None)


def test_what_the_function_does_not_know_is_kept_back() -> None:
    layer = Layer()
    ways = [{"x": InputEntry(shape=(4,)), "y": InputEntry(shape=(4,))}]
    assert first_taken(layer, layer.forward, ways)[0] == ways[0]


def test_a_decision_by_values_has_no_result() -> None:
    layer = Layer()
    ways = [{"x": InputEntry(shape=(4,))}]
    assert first_taken(layer, layer.decide, ways) == (ways[0], None)


def test_features_are_counted_where_they_are_of_the_size_of_tokens() -> None:
    features = SimpleNamespace(pooler_output=[torch.zeros(5, 8), torch.zeros(1, 2, 8)])
    assert count_features(features, size=8) == 7
    assert count_features(features, size=16) == 0
    assert count_features(features, size=None) == 7
    assert count_features(None, size=8) == 0
