"""Graph convolution: sums weighted by the degrees, with self-loops."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from dippm.models.gcn import GCN  # noqa: E402


def test_the_convolution_by_matrices(graphs):
    torch.manual_seed(0)
    network = GCN(hidden=8).eval()
    adjacency, values = graphs.adjacency(), graphs.node_features
    for convolution in network.convolutions:
        joined = adjacency + torch.eye(len(values))
        scale = joined.sum(dim=1).rsqrt()
        expected = (scale[:, None] * joined * scale) @ values @ convolution.lin.weight.T + convolution.bias
        torch.testing.assert_close(graphs.convolve(network, convolution, values), expected, rtol=1e-5, atol=1e-5)
        values = expected.relu()
