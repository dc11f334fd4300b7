"""PMGNS: the network of DIPPM, three GraphSAGE blocks and three fully connected blocks."""

from __future__ import annotations

from dippm.models.blocks import GraphNetwork
from dippm.models.geometric import SAGEConv

__all__ = ["PMGNS"]


class PMGNS(GraphNetwork):
    """Performance model by graph neural network and static features, on GraphSAGE.

    Panner Selvam and Brorsson, "DIPPM" (2023), section 3; the convolution is that of Hamilton et al., "Inductive
    Representation Learning on Large Graphs" (2017), with the mean over neighbours and without its normalisation to
    unit length, which would take the size of an operator away:
    ``h_v = ReLU(W_1 h_v + W_2 mean(h_u for u -> v) + b)``.

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
            [SAGEConv(node_features, hidden), SAGEConv(hidden, hidden), SAGEConv(hidden, hidden)],
            hidden=hidden,
            dropout=dropout,
            outputs=outputs,
            static_features=static_features,
        )
