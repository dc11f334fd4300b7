"""PMGNS on graph attention (GAT)."""

from __future__ import annotations

from dippm.models.blocks import GraphNetwork
from dippm.models.geometric import GATConv

__all__ = ["GAT"]


class GAT(GraphNetwork):
    """PMGNS with the convolution of Velickovic et al., "Graph Attention Networks" (2018), each node joined to itself.

    One attention head as wide as the embeddings: the paper says nothing of heads, and so the other networks' widths
    hold for this one.

    Args:
        hidden: Width of the embeddings and of the fully connected blocks.
        dropout: Share of values dropped in training, 0 to 1.
        outputs: Results per graph.
        node_features: Features per node.
        static_features: Static features per graph.

    Shapes:
        As of :meth:`dippm.models.blocks.GraphNetwork.forward`.
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
        super().__init__(
            [GATConv(node_features, hidden), GATConv(hidden, hidden), GATConv(hidden, hidden)],
            hidden=hidden,
            dropout=dropout,
            outputs=outputs,
            static_features=static_features,
        )
