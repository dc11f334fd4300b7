"""PMGNS on graph isomorphism convolutions (GIN)."""

from __future__ import annotations

from torch import nn

from dippm.models.blocks import GraphNetwork
from dippm.models.geometric import GINConv

__all__ = ["GIN"]


class GIN(GraphNetwork):
    """PMGNS with the convolution of Xu et al., "How Powerful are Graph Neural Networks?" (2019).

    A node and the sum of its neighbours go through two linear layers with a ReLU between them; epsilon is 0.

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
            [
                GINConv(nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden)))
                for inputs in (node_features, hidden, hidden)
            ],
            hidden=hidden,
            dropout=dropout,
            outputs=outputs,
            static_features=static_features,
        )
