"""PMGNS on graph isomorphism convolutions (GIN)."""

from __future__ import annotations

from torch import nn

from dippm.models.blocks import GraphNetwork
from dippm.models.geometric import GINConv

__all__ = ["GIN"]


class GIN(GraphNetwork):
    """PMGNS with the convolution of Xu et al., "How Powerful are Graph Neural Networks?" (2019).

    A node and the sum of its neighbours go through two linear layers with a ReLU between them; epsilon is 0.

    Settings and shapes are those of :class:`dippm.models.blocks.GraphNetwork`.
    """

    @staticmethod
    def make_convolution(inputs: int, outputs: int) -> nn.Module:
        """One graph convolution."""
        perceptron = nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))
        convolution: nn.Module = GINConv(perceptron)
        return convolution
