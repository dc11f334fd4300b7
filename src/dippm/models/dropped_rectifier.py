"""ReLU and dropout in one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

__all__ = ["DroppedRectifier"]

# Dropout is drawn 8 bits a value, eight values from one word of the generator.
_DRAWS = 1 << 8
_VALUES_PER_WORD = 8
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class DroppedRectifier(nn.Module):
    """``dropout(relu(x))``.

    PyTorch draws dropout on a CPU value by value, which takes a quarter of a training step of a wide network. Here it
    is drawn 8 bits a value, laid over the bits of the values, and not kept: a value that was dropped is 0, and a value
    of 0 has no gradient, as ReLU has it anyway. 8 bits know shares of 256ths, so that each call takes the one below or
    above the share, by a draw that makes their mean the share (255 of 256 at most). On other devices PyTorch's own
    kernels run.

    Args:
        dropout: Share of values dropped in training, at least 0 and below 1.
    """

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, values: Tensor) -> Tensor:
        """Rectify, and drop in training."""
        if not (self.training and self.dropout):
            return torch.relu(values)
        if values.device.type != "cpu":
            return functional.dropout(torch.relu(values), self.dropout)
        dropped = min(int(self.dropout * _DRAWS + torch.rand(()).item()), _DRAWS - 1)
        if not dropped:
            return torch.relu(values)
        result: Tensor = _DroppedRectifier.apply(values, dropped)  # type: ignore[no-untyped-call]
        return result


class _DroppedRectifier(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, dropped: int) -> Tensor:
        words = torch.empty(-(-values.numel() // _VALUES_PER_WORD), dtype=torch.int64).random_(-(1 << 63), None)
        draws = words.view(torch.int8)[: values.numel()].view(values.shape)
        # All bits of what is kept, none of what is dropped: 0 minus 1 or minus 0.
        first_kept = dropped - _DRAWS // 2
        bits = draws.clamp_(first_kept - 1, first_kept).neg_().add_(first_kept - 1)
        ctx.scale = _DRAWS / (_DRAWS - dropped)
        result = torch.relu(values).mul_(ctx.scale)
        integer = _INTEGERS[result.element_size()]
        result.view(integer).bitwise_and_(bits.to(integer))
        ctx.save_for_backward(result)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (result,) = ctx.saved_tensors
        own: Tensor = torch.ops.aten.threshold_backward(gradient, result, 0.0)
        return own.mul_(ctx.scale), None
