"""The multilayer perceptron on static features."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from dippm.models.mlp import MLP  # noqa: E402


def test_it_sees_static_features_alone(graphs):
    torch.manual_seed(0)
    network = MLP(hidden=8).eval()
    results = network(*graphs)
    torch.testing.assert_close(results, network.head(graphs.static_features))
    other = network(*replace(graphs, node_features=graphs.node_features + 1, edge_index=graphs.edge_index[:, :1]))
    assert torch.equal(results, other)
