"""Graph attention: a softmax over what a node reads and itself."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from dippm.models.gat import GAT  # noqa: E402


def test_the_convolution_by_matrices(graphs):
    torch.manual_seed(0)
    network = GAT(hidden=8).eval()
    adjacency, values = graphs.adjacency(), graphs.node_features
    for convolution in network.convolutions:
        joined = adjacency + torch.eye(len(values))
        projected = values @ convolution.lin.weight.T
        of_source = (projected * convolution.att_src[0]).sum(dim=1)
        of_target = (projected * convolution.att_dst[0]).sum(dim=1)
        scores = torch.nn.functional.leaky_relu(of_target[:, None] + of_source, 0.2)
        weights = scores.masked_fill(joined == 0, -torch.inf).softmax(dim=1)
        expected = weights @ projected + convolution.bias
        torch.testing.assert_close(graphs.convolve(network, convolution, values), expected, rtol=1e-5, atol=1e-5)
        values = expected.relu()
