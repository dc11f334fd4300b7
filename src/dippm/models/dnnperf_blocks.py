"""What the networks of DNNPerf and those that it is compared with share."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from dippm.models.blocks import FullyConnectedBlocks
from dippm.models.geometric import global_add_pool, global_max_pool, global_mean_pool
from dippm.models.pooling import SHARPNESS

__all__ = ["AttentionReadout", "DnnperfNetwork", "MeanReadout", "softmax_by_group"]


def softmax_by_group(scores: Tensor, group: Tensor, *, groups: int) -> tuple[Tensor, Tensor]:
    """Softmax over the rows of each group, column by column, and the logarithm of what it divides by.

    Args:
        scores: Any numbers.
        group: Group of each row.
        groups: Number of groups; the logarithm of one without rows is 0.

    Shapes:
        scores: [N, F]; group: [N]; results: [N, F], [groups, F].
    """
    top: Tensor = global_max_pool(scores.detach(), group, groups)
    shifted = torch.exp(scores - top[group])
    total: Tensor = global_add_pool(shifted, group, groups)
    is_empty = total == 0
    return shifted / total[group], torch.where(is_empty, 0.0, top + torch.log(torch.where(is_empty, 1.0, total)))


class MeanReadout(nn.Module):
    """A graph as the mean of its nodes; no global state.

    Args:
        hidden: Width of the embeddings.

    Shapes:
        embeddings: [N, hidden]; graph_ids: [N]; graph_features: [G, F], left unread; result: [G, hidden].
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.outputs = hidden

    def forward(self, embeddings: Tensor, graph_ids: Tensor, graph_features: Tensor) -> Tensor:
        """Read the graphs out."""
        result: Tensor = global_mean_pool(embeddings, graph_ids, len(graph_features))
        return result


class AttentionReadout(nn.Module):
    """A graph read out of its nodes by attention, asked by a global state.

    The global state ``u`` begins as an embedding of the sums of all node features over the graph. It asks every node,
    each column of the embeddings for itself: ``s = LeakyReLU(W h + U u)``, ``a = softmax(s)`` over the graph, and
    becomes ``u + ReLU(V [u, sum(a h)])``.

    A weighted mean cannot tell a graph from two copies of it, and a training step's time is a sum over its operators.
    The sums that the global state begins with can; and so can what the softmax divides by, which is the sum of the
    exponentials of the scores: where these follow the logarithms of the operators' costs, its logarithm follows that
    of their sum. The readout hands it on beside the global state.

    Args:
        hidden: Width of the embeddings and of the global state.
        graph_features: Number of sums.

    Shapes:
        embeddings: [N, hidden]; graph_ids: [N]; graph_features: [G, graph_features]; result: [G, 2 hidden].
    """

    def __init__(self, hidden: int, graph_features: int) -> None:
        super().__init__()
        self.embed_sums = nn.Linear(graph_features, hidden)
        self.of_node = nn.Linear(hidden, hidden)
        self.of_state = nn.Linear(hidden, hidden, bias=False)
        self.update = nn.Linear(2 * hidden, hidden)
        self.activation = nn.LeakyReLU(0.2)
        self.outputs = 2 * hidden

    def forward(self, embeddings: Tensor, graph_ids: Tensor, graph_features: Tensor) -> Tensor:
        """Read the graphs out."""
        graphs = len(graph_features)
        state = torch.relu(self.embed_sums(graph_features))
        scores = self.activation(self.of_node(embeddings) + self.of_state(state)[graph_ids])
        # In float32 under mixed precision too: float16 ends at 65,504.
        weights, normalizer = softmax_by_group(SHARPNESS * scores.float(), graph_ids, groups=graphs)
        attended = global_add_pool(weights * embeddings, graph_ids, graphs)
        state = state + torch.relu(self.update(torch.cat([state, attended], dim=1)))
        return torch.cat([state, normalizer / SHARPNESS], dim=1)


class DnnperfNetwork(nn.Module, ABC):
    """A network over training steps: something that makes a vector of each graph, and fully connected blocks.

    All take the same arguments, so that they are compared on the same features; what one does not look at it leaves.

    Args:
        hidden: Width of embeddings and of the fully connected blocks.
        dropout: Share of values dropped in training, 0 to 1.
        outputs: Results per graph.
        node_features: Features per node.
        edge_features: Features per edge.
        graph_features: Features per graph.
    """

    def __init__(
        self,
        *,
        hidden: int,
        dropout: float,
        outputs: int,
        node_features: int,
        edge_features: int,
        graph_features: int,
    ) -> None:
        super().__init__()
        self.hidden = hidden
        self.dropout = nn.Dropout(dropout)
        width = self.build(node_features=node_features, edge_features=edge_features, graph_features=graph_features)
        self.head = FullyConnectedBlocks(inputs=width, hidden=hidden, dropout=dropout, outputs=outputs)

    @abstractmethod
    def build(self, *, node_features: int, edge_features: int, graph_features: int) -> int:
        """Make the layers; returns the width of what :meth:`encode` gives."""

    @abstractmethod
    def encode(
        self,
        node_features: Tensor,
        edge_index: Tensor,
        graph_ids: Tensor,
        edge_features: Tensor,
        graph_features: Tensor,
    ) -> Tensor:
        """A vector for each graph; arguments as of :meth:`forward`."""

    def forward(
        self,
        node_features: Tensor,
        edge_index: Tensor,
        graph_ids: Tensor,
        edge_features: Tensor,
        graph_features: Tensor,
    ) -> Tensor:
        """Predict for a batch of graphs joined into one graph without edges between them.

        Args:
            node_features: Scaled node features of all graphs, the nodes of each in the order in which they run.
            edge_index: Source and target of each edge, rows of ``node_features``.
            graph_ids: Graph of each node, ascending.
            edge_features: Scaled edge features.
            graph_features: Scaled sums over each graph.

        Shapes:
            node_features: [N, node_features]; edge_index: [2, E]; graph_ids: [N]; edge_features: [E, edge_features];
            graph_features: [G, graph_features]; result: [G, outputs].
        """
        encoded = self.encode(node_features, edge_index, graph_ids, edge_features, graph_features)
        result: Tensor = self.head(encoded)
        return result
