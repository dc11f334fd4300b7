"""Rows that are picked and added up."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from dippm.models.rows import add_rows, take_rows  # noqa: E402

INDEX = torch.tensor([2, 0, 2, 3])


def test_rows_by_hand():
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
    assert take_rows(values, INDEX).tolist() == [[5.0, 6.0], [1.0, 2.0], [5.0, 6.0], [7.0, 8.0]]
    assert add_rows(values, INDEX, 5).tolist() == [[3.0, 4.0], [0.0, 0.0], [6.0, 8.0], [7.0, 8.0], [0.0, 0.0]]


def test_gradients_are_those_of_differences():
    torch.manual_seed(0)
    values = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda given: take_rows(given, INDEX), values)
    assert torch.autograd.gradcheck(lambda given: add_rows(given, INDEX, 5), values)


def test_no_rows():
    nothing = torch.zeros(0, dtype=torch.int64)
    assert take_rows(torch.ones(2, 3), nothing).shape == (0, 3)
    assert add_rows(torch.ones(0, 3), nothing, 2).tolist() == [[0.0] * 3] * 2
