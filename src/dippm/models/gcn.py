"""PMGNS on graph convolutions (GCN)."""

from __future__ import annotations

from dippm.models.blocks import GraphNetwork
from dippm.models.geometric import GCNConv

__all__ = ["GCN"]


class GCN(GraphNetwork):
    """PMGNS with graph convolutions, each node joined to itself.

    Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks" (2017).

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
            [GCNConv(node_features, hidden), GCNConv(hidden, hidden), GCNConv(hidden, hidden)],
            hidden=hidden,
            dropout=dropout,
            outputs=outputs,
            static_features=static_features,
        )
