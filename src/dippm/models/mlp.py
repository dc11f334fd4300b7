"""The multilayer perceptron that DIPPM compares with: static features alone, no graph."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from dippm.models.blocks import FullyConnectedBlocks
from dippm.models.message_rounds import Members, MessageRound

__all__ = ["MLP"]


class MLP(nn.Module):
    """The fully connected blocks of PMGNS on the static features.

    Panner Selvam and Brorsson, "DIPPM" (2023), Table 4.

    Args:
        hidden: Width of the fully connected blocks.
        dropout: Share of values dropped in training, 0 to 1.
        outputs: Results per graph.
        node_features: Features per node; not used, here so that all networks are made alike.
        static_features: Static features per graph.
    """

    def __init__(
        self,
        *,
        hidden: int = 512,
        dropout: float = 0.05,
        outputs: int = 3,
        node_features: int = 32,  # noqa: ARG002
        static_features: int = 5,
    ) -> None:
        super().__init__()
        self.head = FullyConnectedBlocks(inputs=static_features, hidden=hidden, dropout=dropout, outputs=outputs)

    def forward(
        self,
        node_features: Tensor,  # noqa: ARG002
        rounds: Sequence[MessageRound],  # noqa: ARG002
        members: Members,  # noqa: ARG002
        static_features: Tensor,
    ) -> Tensor:
        """Predict from the static features; the graph is taken and left unread.

        Shapes:
            static_features: [G, static_features]; result: [G, outputs].
        """
        result: Tensor = self.head(static_features)
        return result
