"""ANEE: the attention-based node-edge encoder of DNNPerf."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dippm.models.dnnperf_blocks import AttentionReadout, DnnperfNetwork, MeanReadout, softmax_by_group
from dippm.models.geometric import global_add_pool

__all__ = ["ANEE", "ROUNDS", "NodeEdgeRound"]

ROUNDS = 2
"""Rounds of the encoder: after two an operator knows what fed those that feed it."""


class NodeEdgeRound(nn.Module):
    """One round: every edge looks at its two nodes, every node at its incoming triples.

    For each triple (node ``u``, edge, node ``v``)::

        z_uv  = LeakyReLU(A h_u + B e_uv + C h_v)
        e'_uv = e_uv + z_uv
        a_uv  = softmax over the edges into v of (q . z_uv)
        h'_v  = h_v + ReLU(S h_v + M sum(a_uv e'_uv))

    The paper says that edges and nodes are updated in rounds by attention over triples; this form takes the score from
    the triple itself, as GATv2 does, and hands on the updated edge, which knows its source by then. Old embeddings are
    added to the new ones so that what a node costs reaches the readout unmixed.

    Args:
        hidden: Width of both embeddings.

    Shapes:
        nodes: [N, hidden]; edges: [E, hidden]; edge_index: [2, E].
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.of_source = nn.Linear(hidden, hidden)
        self.of_edge = nn.Linear(hidden, hidden, bias=False)
        self.of_target = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.of_self = nn.Linear(hidden, hidden)
        self.of_message = nn.Linear(hidden, hidden, bias=False)
        self.activation = nn.LeakyReLU(0.2)

    def forward(self, nodes: Tensor, edges: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        """New embeddings of nodes and edges."""
        source, target = edge_index
        # Sums of products, node by node before they are gathered: the triples are never put together.
        triples = self.activation(self.of_source(nodes)[source] + self.of_edge(edges) + self.of_target(nodes)[target])
        edges = edges + triples
        weights, _ = softmax_by_group(self.score(triples), target, groups=len(nodes))
        messages = global_add_pool(weights * edges, target, len(nodes))
        return nodes + torch.relu(self.of_self(nodes) + self.of_message(messages)), edges


class ANEE(DnnperfNetwork):
    """Node and edge features embedded, two rounds over node-edge-node triples, an attention readout, an MLP.

    Gao et al., "Runtime Performance Prediction for Deep Learning Models with Graph Neural Network" (ICSE-SEIP 2023),
    section III. What the paper leaves open is settled in :class:`NodeEdgeRound` and
    :class:`dippm.models.dnnperf_blocks.AttentionReadout`.

    Settings and shapes are those of :class:`dippm.models.dnnperf_blocks.DnnperfNetwork`.
    """

    def build(self, *, node_features: int, edge_features: int, graph_features: int) -> int:
        """Make the layers."""
        self.embed_nodes = nn.Linear(node_features, self.hidden)
        self.embed_edges = nn.Linear(edge_features, self.hidden)
        self.rounds = nn.ModuleList(NodeEdgeRound(self.hidden) for _ in range(ROUNDS))
        self.readout = self.make_readout(graph_features)
        return self.readout.outputs

    def make_readout(self, graph_features: int) -> AttentionReadout | MeanReadout:
        """What makes a vector of the nodes of a graph."""
        return AttentionReadout(self.hidden, graph_features)

    def encode(
        self,
        node_features: Tensor,
        edge_index: Tensor,
        graph_ids: Tensor,
        edge_features: Tensor,
        graph_features: Tensor,
    ) -> Tensor:
        """A vector for each graph."""
        nodes = torch.relu(self.embed_nodes(node_features))
        edges = torch.relu(self.embed_edges(edge_features))
        for encode_round in self.rounds:
            nodes, edges = encode_round(nodes, edges, edge_index)
            nodes = self.dropout(nodes)
        result: Tensor = self.readout(nodes, graph_ids, graph_features)
        return result
