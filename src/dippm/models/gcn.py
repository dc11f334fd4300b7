"""PMGNS on graph convolutions (GCN)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dippm.models.blocks import GraphNetwork
from dippm.models.geometric import GCNConv
from dippm.models.message_rounds import MessageRound

__all__ = ["GCN"]


class GCN(GraphNetwork):
    """PMGNS with graph convolutions, each node joined to itself.

    Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks" (2017).

    Settings and shapes are those of :class:`dippm.models.blocks.GraphNetwork`.
    """

    @staticmethod
    def make_convolution(inputs: int, outputs: int) -> nn.Module:
        """One graph convolution."""
        convolution: nn.Module = _RoundConvolution(inputs, outputs)
        return convolution

    @staticmethod
    def convolve(convolution: nn.Module, values: Tensor, messages: MessageRound) -> Tensor:
        """A convolution in which every row hears itself, too."""
        result: Tensor = convolution(values, messages)
        return result


class _RoundConvolution(GCNConv):  # type: ignore[misc]
    """PyTorch Geometric's, from the rows before a graph block to those after it, which its own ``forward`` refuses.

    ``h_v = s_v (s_v W h_v + sum(s_u W h_u for u -> v)) + b`` with ``s = 1 / sqrt(1 + degree)``.
    """

    def forward(self, values: Tensor, messages: MessageRound) -> Tensor:
        own, edge_index, degrees = messages
        scale = torch.rsqrt(1.0 + degrees)[:, None]
        sent = scale * self.lin(values)
        heard = self.propagate(edge_index, x=sent, edge_weight=None, size=(len(values), len(own)))
        result: Tensor = scale.index_select(0, own) * (heard + sent.index_select(0, own)) + self.bias
        return result
