"""The latency predictor of BRP-NAS: graph convolutions and a global node."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dippm.models.dnnperf_blocks import DnnperfNetwork
from dippm.models.geometric import GCNConv

__all__ = ["BRPNAS", "LAYERS"]

LAYERS = 4


class BRPNAS(DnnperfNetwork):
    """Four graph convolutions over the nodes and a global node that reads every other; it stands for the graph.

    Dudziak et al., "BRP-NAS: Prediction-based NAS using GCNs" (2020), section 3.1. There a node has its operator
    alone, of a space of five; here it has all features of DNNPerf, since operators of any size would else look alike.
    The width is that of all networks compared rather than 600.

    Settings and shapes are those of :class:`dippm.models.dnnperf_blocks.DnnperfNetwork`.
    """

    def build(self, *, node_features: int, edge_features: int, graph_features: int) -> int:  # noqa: ARG002
        """Make the layers."""
        widths = (node_features + 1, *([self.hidden] * LAYERS))
        self.layers = nn.ModuleList(GCNConv(widths[layer], widths[layer + 1]) for layer in range(LAYERS))
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
        nodes, graphs = len(node_features), len(graph_features)
        # The global nodes stand behind all others, and have a feature of their own.
        values = node_features.new_zeros(nodes + graphs, node_features.shape[1] + 1)
        values[:nodes, :-1] = node_features
        values[nodes:, -1] = 1.0
        to_global = torch.stack([torch.arange(nodes, device=graph_ids.device), nodes + graph_ids])
        edges = torch.cat([edge_index, to_global], dim=1)
        for layer in self.layers:
            values = self.dropout(torch.relu(layer(values, edges)))
        return values[nodes:]
