"""PMGNS: the network of DIPPM, three GraphSAGE blocks and three fully connected blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from dippm.models.blocks import GraphNetwork
from dippm.models.geometric import SAGEConv
from dippm.models.message_rounds import MessageRound
from dippm.models.rows import add_rows, take_rows

__all__ = ["PMGNS"]


class PMGNS(GraphNetwork):
    """Performance model by graph neural network and static features, on GraphSAGE.

    Panner Selvam and Brorsson, "DIPPM" (2023), section 3; the convolution is that of Hamilton et al., "Inductive
    Representation Learning on Large Graphs" (2017), with the mean over neighbours and without its normalisation to
    unit length, which would take the size of an operator away:
    ``h_v = ReLU(W_1 h_v + W_2 mean(h_u for u -> v) + b)``.

    Settings and shapes are those of :class:`dippm.models.blocks.GraphNetwork`.
    """

    @staticmethod
    def make_convolution(inputs: int, outputs: int) -> nn.Module:
        """One graph convolution."""
        convolution: nn.Module = SAGEConv(inputs, outputs)
        return convolution

    @staticmethod
    def convolve(convolution: nn.Module, values: Tensor, messages: MessageRound) -> Tensor:
        """What the convolution gives, with its products on whichever rows are fewer numbers to handle.

        A mean of products is the product of a mean: where the block does not widen, rows before it, of which there are
        fewer, are multiplied and then averaged; where it does, as the first one, narrow rows are averaged before.
        """
        of_others: Any = convolution.lin_l
        of_itself: Any = convolution.lin_r
        if values.shape[1] < of_others.out_channels:
            narrow: Tensor = of_others(_mean_heard(values, messages)) + of_itself(take_rows(values, messages.own))
            return narrow
        told = functional.linear(values, of_others.weight)
        kept = functional.linear(values, of_itself.weight, of_others.bias)
        result: Tensor = _Hear.apply(told, kept, messages)  # type: ignore[no-untyped-call]
        return result


def _shares(values: Tensor, messages: MessageRound) -> Tensor:
    """What each message is of the mean that a row hears, in the format of the values, [N_after, 1]."""
    wide = torch.promote_types(values.dtype, torch.float32)
    counts = torch.zeros(len(messages.own), dtype=wide, device=values.device)
    ones = torch.ones(1, dtype=wide, device=values.device).expand(messages.edge_index.shape[1])
    # Not by counting, for which a GPU would be waited for.
    counts.scatter_add_(0, messages.edge_index[1], ones)
    return counts.clamp(min=1).reciprocal()[:, None].to(values.dtype)


def _mean_heard(values: Tensor, messages: MessageRound) -> Tensor:
    producer, consumer = messages.edge_index
    heard = add_rows(take_rows(values, producer), consumer, len(messages.own))
    return heard * _shares(heard, messages)


class _Hear(torch.autograd.Function):
    """The mean of what a row is told, and what it keeps of its own: [N_before, F] each, to [N_after, F]."""

    @staticmethod
    def forward(ctx: Any, told: Tensor, kept: Tensor, messages: MessageRound) -> Tensor:
        (producer, consumer), own = messages.edge_index, messages.own
        shares = _shares(told, messages)
        ctx.save_for_backward(producer, consumer, own, shares)
        ctx.count = len(told)
        return add_rows(told.index_select(0, producer), consumer, len(own)).mul_(shares).add_(kept.index_select(0, own))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        producer, consumer, own, shares = ctx.saved_tensors
        told = add_rows((gradient * shares).index_select(0, consumer), producer, ctx.count)
        return told, add_rows(gradient, own, ctx.count), None
