"""BiRNN: the nodes as a sequence, read forwards and backwards."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dippm.models.dnnperf_blocks import DnnperfNetwork
from dippm.models.node_sequences import count_nodes, make_cells, read_sequences

__all__ = ["BiRNN"]


class BiRNN(DnnperfNetwork):
    """A bidirectional recurrent network over the nodes in the order in which they run, without edges.

    One of the networks that DNNPerf is compared with. The cells are GRUs and read eight nodes at once, see
    :func:`dippm.models.node_sequences.read_sequences`; the last states of both directions stand for the graph.

    Settings and shapes are those of :class:`dippm.models.dnnperf_blocks.DnnperfNetwork`.
    """

    def build(self, *, node_features: int, edge_features: int, graph_features: int) -> int:  # noqa: ARG002
        """Make the layers."""
        self.embed_nodes = nn.Linear(node_features, self.hidden)
        self.forwards = make_cells(self.hidden)
        self.backwards = make_cells(self.hidden)
        return 2 * self.hidden

    def encode(
        self,
        node_features: Tensor,
        edge_index: Tensor,  # noqa: ARG002
        graph_ids: Tensor,
        edge_features: Tensor,  # noqa: ARG002
        graph_features: Tensor,
    ) -> Tensor:
        """A vector for each graph."""
        nodes = torch.relu(self.embed_nodes(node_features))
        counts = count_nodes(graph_ids, graphs=len(graph_features))
        states = [
            read_sequences(self.forwards, nodes, graph_ids, counts, backwards=False),
            read_sequences(self.backwards, nodes, graph_ids, counts, backwards=True),
        ]
        result: Tensor = self.dropout(torch.cat(states, dim=1))
        return result
