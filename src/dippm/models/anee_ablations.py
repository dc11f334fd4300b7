"""ANEE with one of its parts taken out or exchanged, as the DNNPerf paper's ablation does."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dippm.models.anee import ANEE, ROUNDS
from dippm.models.dnnperf_blocks import AttentionReadout, DnnperfNetwork, MeanReadout
from dippm.models.geometric import GATConv, global_mean_pool

__all__ = ["ANEEWithAverageReadout", "ANEEWithConcatenatedEdges", "ANEEWithGAT"]


class ANEEWithAverageReadout(ANEE):
    """ANEE that reads a graph out as the mean of its nodes, without attention and without a global state."""

    def make_readout(self, graph_features: int) -> AttentionReadout | MeanReadout:  # noqa: ARG002
        """What makes a vector of the nodes of a graph."""
        return MeanReadout(self.hidden)


class ANEEWithGAT(DnnperfNetwork):
    """ANEE with layers of plain graph attention in place of its rounds; edge features are left unread.

    Each layer is that of Velickovic et al., "Graph Attention Networks" (2018), one head, each node joined to itself.
    """

    def build(self, *, node_features: int, edge_features: int, graph_features: int) -> int:
        """Make the layers."""
        self.embed_nodes = nn.Linear(self.count_inputs(node_features, edge_features), self.hidden)
        self.layers = nn.ModuleList(GATConv(self.hidden, self.hidden) for _ in range(ROUNDS))
        self.readout = AttentionReadout(self.hidden, graph_features)
        return self.readout.outputs

    def count_inputs(self, node_features: int, edge_features: int) -> int:  # noqa: ARG002
        """Width of what a node is embedded from."""
        return node_features

    def join(self, node_features: Tensor, edge_index: Tensor, edge_features: Tensor) -> Tensor:  # noqa: ARG002
        """What a node is embedded from."""
        return node_features

    def encode(
        self,
        node_features: Tensor,
        edge_index: Tensor,
        graph_ids: Tensor,
        edge_features: Tensor,
        graph_features: Tensor,
    ) -> Tensor:
        """A vector for each graph."""
        nodes = torch.relu(self.embed_nodes(self.join(node_features, edge_index, edge_features)))
        for layer in self.layers:
            nodes = self.dropout(torch.relu(layer(nodes, edge_index)))
        result: Tensor = self.readout(nodes, graph_ids, graph_features)
        return result


class ANEEWithConcatenatedEdges(ANEEWithGAT):
    """ANEE whose edges have no embeddings: the mean of a node's incoming edges is joined to its own features.

    What results goes through layers of plain graph attention.
    """

    def count_inputs(self, node_features: int, edge_features: int) -> int:
        """Width of what a node is embedded from."""
        return node_features + edge_features

    def join(self, node_features: Tensor, edge_index: Tensor, edge_features: Tensor) -> Tensor:
        """What a node is embedded from."""
        incoming = global_mean_pool(edge_features, edge_index[1], len(node_features))
        return torch.cat([node_features, incoming], dim=1)
