"""PMGNS: the network of DIPPM, three GraphSAGE blocks and three fully connected blocks."""

from __future__ import annotations

from torch import nn

from dippm.models.blocks import GraphNetwork
from dippm.models.geometric import SAGEConv

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
