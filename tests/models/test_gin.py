"""Graph isomorphism: a perceptron of the node and the sum of what it reads."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from dippm.models.gin import GIN  # noqa: E402


def _adjacency(graphs):
    """Ones where a message goes from column to row."""
    result = torch.zeros(len(graphs.node_features), len(graphs.node_features))
    result[graphs.edge_index[1], graphs.edge_index[0]] = 1.0
    return result


def test_the_convolution_by_matrices(graphs):
    torch.manual_seed(0)
    network = GIN(hidden=8).eval()
    adjacency, values = _adjacency(graphs), graphs.node_features
    for convolution in network.convolutions:
        first, _, second = convolution.nn
        hidden = ((values + adjacency @ values) @ first.weight.T + first.bias).relu()
        expected = hidden @ second.weight.T + second.bias
        torch.testing.assert_close(convolution(values, graphs.edge_index), expected, rtol=1e-5, atol=1e-5)
        values = expected.relu()
