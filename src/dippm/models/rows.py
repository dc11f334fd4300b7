"""Rows that are picked and rows that are added up, with gradients as fast as themselves.

PyTorch's gradient of an indexed sum gathers value by value; that of whole rows is a pick of rows, and the other way
round.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["add_rows", "take_rows"]


def take_rows(values: Tensor, index: Tensor) -> Tensor:
    """Some rows, as often as they are named.

    Shapes:
        values: [N, F]; index: [M]; result: [M, F].
    """
    result: Tensor = _Take.apply(values, index)  # type: ignore[no-untyped-call]
    return result


def add_rows(values: Tensor, index: Tensor, count: int) -> Tensor:
    """The sum of the rows of each index.

    Args:
        values: The rows.
        index: Where each is added.
        count: Rows of the result; one that no index names is 0.

    Shapes:
        values: [M, F]; index: [M]; result: [count, F].
    """
    result: Tensor = _Add.apply(values, index, count)  # type: ignore[no-untyped-call]
    return result


def _added(values: Tensor, index: Tensor, count: int) -> Tensor:
    return values.new_zeros(count, values.shape[1]).scatter_add_(0, index[:, None].expand_as(values), values)


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.count = len(values)
        return values.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return _added(gradient, index, ctx.count), None


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(index)
        return _added(values, index, count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return gradient.index_select(0, index), None, None
