"""Models whose weights have shapes and no values."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.frontends.torch.valueless import WithoutValues  # noqa: E402


def test_initial_values_are_left_out_on_the_meta_device():
    with torch.device("meta"), WithoutValues():
        layer = nn.Linear(4, 2)
        nn.init.normal_(tensor=layer.weight)
        filled = torch.empty(3).fill_(2.0)
    assert layer.weight.is_meta
    assert layer.weight.requires_grad
    assert filled.shape == (3,)


def test_tensors_with_values_get_theirs():
    with WithoutValues():
        assert torch.empty(3).fill_(2.0).tolist() == [2.0, 2.0, 2.0]
        assert nn.init.constant_(torch.empty(2), 1.5).tolist() == [1.5, 1.5]


def test_a_single_integer_keeps_its_value():
    with torch.device("meta"), WithoutValues():
        stride = torch.tensor(3, dtype=torch.int64)
        others = [torch.tensor(3.0), torch.tensor([3]), torch.tensor(3, dtype=torch.float32), torch.ones(())]
    assert (stride - 1).item() == 2
    assert all(tensor.is_meta for tensor in others)
    with WithoutValues():
        assert torch.tensor(3, device="meta").is_meta
