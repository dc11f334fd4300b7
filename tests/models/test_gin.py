"""Graph isomorphism: a perceptron of the node and the sum of what it reads."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from dippm.models.gin import GIN  # noqa: E402


def test_the_convolution_by_matrices(graphs):
    torch.manual_seed(0)
    network = GIN(hidden=8).eval()
    adjacency, values = graphs.adjacency(), graphs.node_features
    for convolution in network.convolutions:
        first, _, second = convolution.nn
        hidden = ((values + adjacency @ values) @ first.weight.T + first.bias).relu()
        expected = hidden @ second.weight.T + second.bias
        torch.testing.assert_close(graphs.convolve(network, convolution, values), expected, rtol=1e-5, atol=1e-5)
        values = expected.relu()
