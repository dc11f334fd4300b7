"""What the graph networks share: graph blocks, the readout of a graph, fully connected blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dippm.models.geometric import global_add_pool, global_max_pool
from dippm.models.message_rounds import ROUNDS, Members, MessageRound

__all__ = ["SHARPNESS", "FullyConnectedBlocks", "GraphNetwork", "pool_nodes"]

#: Of the soft maximum in :func:`pool_nodes`. Chosen on a validation split among 4, 8 and ``ln(1 + sum)`` in its place.
SHARPNESS = 8.0

_LAYERS = 3


def pool_nodes(embeddings: Tensor, members: Members, *, graphs: int) -> Tensor:
    """Read a graph out of its nodes: their mean, and the logarithm of the sum of their exponentials.

    The paper says that node embeddings are pooled, not how. Time and energy are sums over operators whose costs span
    decades, and a network learns their logarithms: where a value follows the logarithm of what a node costs,
    ``ln(1 + sum(exp(s h))) / s`` follows that of what the graph costs, which neither a mean nor a sum of logarithms
    does. The sharpness ``s`` brings embeddings, which are near 1, to such a span.

    Pooling is in float32 under mixed precision too, since float16 ends at 65,504.

    Args:
        embeddings: Embeddings of rows, none negative.
        members: The rows of each graph.
        graphs: Number of graphs; one without nodes gets zeros.

    Shapes:
        embeddings: [N, F]; result: [G, 2 F].
    """
    graph_ids, rows, counts = members
    # Not by indexing, whose gradient is slower.
    embeddings = embeddings.float().index_select(0, rows)
    share = counts / global_add_pool(counts, graph_ids, graphs).index_select(0, graph_ids)
    mean: Tensor = global_add_pool(share[:, None] * embeddings, graph_ids, graphs)
    sharp = SHARPNESS * embeddings
    # The largest is taken out before and put back after, so that no exponential overflows; gradients are the same.
    top: Tensor = global_max_pool(sharp.detach(), graph_ids, graphs).clamp(min=0.0)
    total = global_add_pool(counts[:, None] * torch.exp(sharp - top.index_select(0, graph_ids)), graph_ids, graphs)
    return torch.cat([mean, (top + torch.log(torch.exp(-top) + total)) / SHARPNESS], dim=1)


class FullyConnectedBlocks(nn.Module):
    """Three fully connected blocks (linear, ReLU, dropout) and a linear layer for the outputs.

    Args:
        inputs: Width of the input.
        hidden: Width of each block.
        dropout: Share of values dropped in training, 0 to 1.
        outputs: Width of the result.

    Shapes:
        [G, inputs] -> [G, outputs].
    """

    def __init__(self, *, inputs: int, hidden: int, dropout: float, outputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inputs if block == 0 else hidden, hidden) for block in range(_LAYERS))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, outputs)

    def forward(self, values: Tensor) -> Tensor:
        """Apply the blocks."""
        for layer in self.layers:
            values = self.dropout(torch.relu(layer(values)))
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
        self.dropout = nn.Dropout(dropout)
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
            values = self.dropout(torch.relu(self.convolve(convolution, values, messages)))
        pooled = pool_nodes(values, members, graphs=len(static_features))
        result: Tensor = self.head(torch.cat([pooled, static_features], dim=1))
        return result
