from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from dippm.datasets.recipes.architectures.recurrent import RecurrentClassifier  # noqa: E402


@pytest.mark.parametrize(("cell", "gates"), [("rnn", 1), ("gru", 3), ("lstm", 4)])
def test_recurrent_networks_have_their_gates(
    cell: str, gates: int, parameters: Callable[[torch.nn.Module], int]
) -> None:
    module = RecurrentClassifier(cell=cell, features=20, hidden=30, layers=1, bidirectional=True, classes=7)
    assert parameters(module) == 2 * gates * 30 * (20 + 30 + 2) + 60 * 7 + 7
    assert module(torch.empty(2, 11, 20)).shape == (2, 7)
