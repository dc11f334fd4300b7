"""PMGNS on graph attention (GAT)."""

from __future__ import annotations

from torch import nn

from dippm.models.blocks import GraphNetwork
from dippm.models.geometric import GATConv

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
        convolution: nn.Module = GATConv(inputs, outputs)
        return convolution
