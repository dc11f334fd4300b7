"""PMGNS on graph convolutions (GCN)."""

from __future__ import annotations

from torch import nn

from dippm.models.blocks import GraphNetwork
from dippm.models.geometric import GCNConv

__all__ = ["GCN"]


class GCN(GraphNetwork):
    """PMGNS with graph convolutions, each node joined to itself.

    Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks" (2017).

    Settings and shapes are those of :class:`dippm.models.blocks.GraphNetwork`.
    """

    @staticmethod
    def make_convolution(inputs: int, outputs: int) -> nn.Module:
        """One graph convolution."""
        convolution: nn.Module = GCNConv(inputs, outputs)
        return convolution
