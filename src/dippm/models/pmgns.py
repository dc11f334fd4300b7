"""PMGNS: the network of DIPPM, three GraphSAGE blocks and three fully connected blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
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
        (producer, consumer), own = messages.edge_index, messages.own
        heard_by: Any = convolution.lin_l
        sees_itself: Any = convolution.lin_r
        count = len(own)
        share = 1.0 / torch.bincount(consumer, minlength=count).clamp(min=1)[:, None]

        def mean_heard(rows: Tensor) -> Tensor:
            return add_rows(take_rows(rows, producer), consumer, count) * share.to(rows.dtype)

        result: Tensor
        if values.shape[1] < heard_by.out_channels:
            result = heard_by(mean_heard(values)) + sees_itself(take_rows(values, own))
        else:
            result = mean_heard(functional.linear(values, heard_by.weight)) + take_rows(sees_itself(values), own)
            result = result + heard_by.bias.to(result.dtype)
        return result
