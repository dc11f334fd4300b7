"""PMGNS: the mean over what a node reads, beside the node itself."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from dippm.models.pmgns import PMGNS  # noqa: E402


def test_the_convolution_by_matrices(graphs):
    torch.manual_seed(0)
    network = PMGNS(hidden=8).eval()
    adjacency, values = graphs.adjacency(), graphs.node_features
    for convolution in network.convolutions:
        mean = adjacency @ values / adjacency.sum(dim=1, keepdim=True).clamp(min=1)
        expected = mean @ convolution.lin_l.weight.T + convolution.lin_l.bias + values @ convolution.lin_r.weight.T
        torch.testing.assert_close(graphs.convolve(network, convolution, values), expected, rtol=1e-5, atol=1e-5)
        values = expected.relu()


def test_the_whole_network_by_matrices(graphs):
    torch.manual_seed(0)
    network = PMGNS(hidden=8).eval()
    values = graphs.node_features
    for convolution in network.convolutions:
        values = graphs.convolve(network, convolution, values).relu()
    rows = []
    for graph, statics in enumerate(graphs.static_features):
        own = values[graphs.graph_ids == graph]
        rows.append(torch.cat([own.mean(dim=0), (8 * own).exp().sum(dim=0).log1p() / 8, statics]))
    torch.testing.assert_close(network(*graphs), network.head(torch.stack(rows)), rtol=1e-5, atol=1e-6)


def test_the_published_size():
    """Table 3 of the paper: 512 hidden units."""
    network = PMGNS()
    convolutions = 2 * 32 * 512 + 512 + 2 * (2 * 512 * 512 + 512)
    head = (1024 + 5 + 1) * 512 + 2 * (512 + 1) * 512 + (512 + 1) * 3
    assert sum(parameter.numel() for parameter in network.parameters()) == convolutions + head
