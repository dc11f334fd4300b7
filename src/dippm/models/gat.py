"""PMGNS on graph attention (GAT)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dippm.models.blocks import GraphNetwork
from dippm.models.geometric import GATConv
from dippm.models.message_rounds import MessageRound

__all__ = ["GAT"]


class GAT(GraphNetwork):
    """PMGNS with the convolution of Velickovic et al., "Graph Attention Networks" (2018), each node joined to itself.

    One attention head as wide as the embeddings: the paper says nothing of heads, and so the other networks' widths
    hold for this one.

    Settings and shapes are those of :class:`dippm.models.blocks.GraphNetwork`.
    """

    @staticmethod
    def make_convolution(inputs: int, outputs: int) -> nn.Module:
        """One graph convolution."""
        convolution: nn.Module = GATConv(inputs, outputs, add_self_loops=False)
        return convolution

    @staticmethod
    def convolve(convolution: nn.Module, values: Tensor, messages: MessageRound) -> Tensor:
        """A convolution in which every row hears itself, too."""
        own = messages.own
        itself = torch.stack([own, torch.arange(len(own), device=own.device)])
        edges = torch.cat([messages.edge_index, itself], dim=1)
        result: Tensor = convolution((values, values.index_select(0, own)), edges)
        return result
