"""ARNN: the nodes as a sequence, each with its row of the adjacency matrix."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dippm.models.dnnperf_blocks import DnnperfNetwork
from dippm.models.geometric import global_add_pool
from dippm.models.node_sequences import count_nodes, make_cells, read_sequences

__all__ = ["ARNN", "COLUMNS"]

COLUMNS = 8192
"""Columns of an adjacency row; sources further on in a graph share the last one."""


class ARNN(DnnperfNetwork):
    """A recurrent network over the nodes in the order in which they run, whose input has the adjacency row of a node.

    One of the networks that DNNPerf is compared with. The row of node ``v`` has a 1 in column ``u`` where ``v`` reads
    what ``u`` wrote. A linear layer over such a row is the sum of its columns' weights over the sources, and is
    computed so: rows of thousands of columns are never written out. The cells are those of
    :class:`dippm.models.birnn.BiRNN`.

    Settings and shapes are those of :class:`dippm.models.dnnperf_blocks.DnnperfNetwork`.
    """

    def build(self, *, node_features: int, edge_features: int, graph_features: int) -> int:  # noqa: ARG002
        """Make the layers."""
        self.embed_nodes = nn.Linear(node_features, self.hidden)
        self.columns = nn.Embedding(COLUMNS, self.hidden)
        self.cells = make_cells(self.hidden)
        # As for a linear layer of so many inputs: rows of the standard start of an embedding would drown the features.
        nn.init.uniform_(self.columns.weight, -(COLUMNS**-0.5), COLUMNS**-0.5)
        return self.hidden

    def encode(
        self,
        node_features: Tensor,
        edge_index: Tensor,
        graph_ids: Tensor,
        edge_features: Tensor,  # noqa: ARG002
        graph_features: Tensor,
    ) -> Tensor:
        """A vector for each graph."""
        counts = count_nodes(graph_ids, graphs=len(graph_features))
        first = torch.cumsum(counts, 0) - counts
        source, target = edge_index
        column = (source - first[graph_ids[source]]).clamp(max=COLUMNS - 1)
        rows = global_add_pool(self.columns(column), target, len(node_features))
        nodes = torch.relu(self.embed_nodes(node_features) + rows)
        result: Tensor = self.dropout(read_sequences(self.cells, nodes, graph_ids, counts, backwards=False))
        return result
