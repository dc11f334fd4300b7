from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

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
