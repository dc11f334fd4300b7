"""The multilayer perceptron that DNNPerf is compared with: sums over the graph alone."""

from __future__ import annotations

from torch import Tensor

from dippm.models.dnnperf_blocks import DnnperfNetwork

__all__ = ["DnnperfMLP"]


class DnnperfMLP(DnnperfNetwork):
    """Fully connected blocks on the sums of the node features; nodes and edges are left unread.

    Settings and shapes are those of :class:`dippm.models.dnnperf_blocks.DnnperfNetwork`.
    """

    def build(self, *, node_features: int, edge_features: int, graph_features: int) -> int:  # noqa: ARG002
        """There are no layers before the blocks."""
        return graph_features

    def encode(
        self,
        node_features: Tensor,  # noqa: ARG002
        edge_index: Tensor,  # noqa: ARG002
        graph_ids: Tensor,  # noqa: ARG002
        edge_features: Tensor,  # noqa: ARG002
        graph_features: Tensor,
    ) -> Tensor:
        """The sums."""
        return graph_features
