"""What the graph networks share: graph blocks and fully connected blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dippm.models.dropped_rectifier import DroppedRectifier
from dippm.models.message_rounds import ROUNDS, Members, MessageRound
from dippm.models.pooling import pool_nodes

__all__ = ["FullyConnectedBlocks", "GraphNetwork"]

_LAYERS = 3


class FullyConnectedBlocks(nn.Module):
    """Three fully connected blocks (linear, ReLU, dropout) and a linear layer for the outputs.

    Args:
        inputs: Width of the input.
        hidden: Width of each block.
        dropout: Share of values dropped in training, at least 0 and below 1.
        outputs: Width of the result.

    Shapes:
        [G, inputs] -> [G, outputs].
    """

    def __init__(self, *, inputs: int, hidden: int, dropout: float, outputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inputs if block == 0 else hidden, hidden) for block in range(_LAYERS))
        self.activation = DroppedRectifier(dropout)
        self.output = nn.Linear(hidden, outputs)

    def forward(self, values: Tensor) -> Tensor:
        """Apply the blocks."""
        for layer in self.layers:
            values = self.activation(layer(values))
        result: Tensor = self.output(values)
        return result


class GraphNetwork(nn.Module, ABC):
    """Graph blocks over the nodes, a readout joined with the static features, fully connected blocks.

    A graph block is a graph convolution, ReLU and dropout. There is no normalisation in it, so that networks differ in
    their convolution alone. Messages flow one way, from producer to consumer, as data do: the adjacency of the paper
    is directed, and a convolution that mixed both directions could not tell what a node reads from what reads it.

    Args:
        hidden: Width of the embeddings and of the fully connected blocks.
        dropout: Share of values dropped in training, 0 to 1.
        outputs: Results per graph.
        node_features: Features per node.
        static_features: Static features per graph.
    """

    def __init__(
        self,
        *,
        hidden: int = 512,
        dropout: float = 0.05,
        outputs: int = 3,
        node_features: int = 32,
        static_features: int = 5,
    ) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            self.make_convolution(node_features if block == 0 else hidden, hidden) for block in range(ROUNDS)
        )
        self.activation = DroppedRectifier(dropout)
        self.head = FullyConnectedBlocks(
            inputs=2 * hidden + static_features, hidden=hidden, dropout=dropout, outputs=outputs
        )

    @staticmethod
    @abstractmethod
    def make_convolution(inputs: int, outputs: int) -> nn.Module:
        """A graph convolution between these widths, for :meth:`convolve`."""

    @staticmethod
    def convolve(convolution: nn.Module, values: Tensor, messages: MessageRound) -> Tensor:
        """Apply a convolution to the rows before a graph block; gives the rows after it."""
        result: Tensor = convolution((values, values.index_select(0, messages.own)), messages.edge_index)
        return result

    def forward(
        self, node_features: Tensor, rounds: Sequence[MessageRound], members: Members, static_features: Tensor
    ) -> Tensor:
        """Predict for a batch of graphs.

        Args:
            node_features: Scaled node features of the rows before the first graph block.
            rounds: What each graph block makes of the rows before it.
            members: Rows after the last of them that make up each graph.
            static_features: Scaled static features of each graph.

        Shapes:
            node_features: [N, node_features]; static_features: [G, static_features]; result: [G, outputs].
        """
        values = node_features
        for convolution, messages in zip(self.convolutions, rounds, strict=True):
            values = self.activation(self.convolve(convolution, values, messages))
        pooled = pool_nodes(values, members, graphs=len(static_features))
        result: Tensor = self.head(torch.cat([pooled, static_features], dim=1))
        return result
