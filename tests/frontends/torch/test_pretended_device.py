from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dippm.errors import UnsupportedError  # noqa: E402
from dippm.graph import Graph  # noqa: E402


def test_membership_in_the_input_is_assumed_and_reported(read: Callable[..., Graph]) -> None:
    class Warns(nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            if 3 in tokens[:, [-1, 0]]:
                raise ValueError("padding")
            return tokens + 1

    graph = read(Warns(), "5:int64")
    assert len(graph.warnings) == 1
    assert "3" in graph.warnings[0]


def test_numbers_in_a_list_become_a_tensor_where_they_are_known(read: Callable[..., Graph]) -> None:
    class Collects(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sizes = torch.tensor([torch.arange(4).max(), [2, torch.tensor(5)][1]])
            return x.split(sizes.tolist(), dim=1)[0] * 2

    graph = read(Collects(), "8")
    assert [fixed for _, fixed in graph.tensors[graph.outputs[0]].shape][1:] == [3]


def test_numbers_in_a_list_are_not_guessed(read: Callable[..., Graph]) -> None:
    class Collects(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([x.max(), x.min()])

    with pytest.raises(UnsupportedError) as caught:
        read(Collects(), "8")
    assert caught.value.code == "torch.data_dependent"
