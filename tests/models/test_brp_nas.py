from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from dippm.models.brp_nas import BRPNAS, LAYERS  # noqa: E402


def _make(step_widths):
    torch.manual_seed(3)
    return BRPNAS(hidden=12, dropout=0.0, outputs=3, **step_widths).eval()


def test_four_convolutions_with_a_feature_for_the_global_node(step_widths):
    network = _make(step_widths)
    assert [(layer.in_channels, layer.out_channels) for layer in network.layers] == [(10, 12), *[(12, 12)] * 3]
    assert len(network.layers) == LAYERS


def test_the_global_node_is_a_node_that_reads_all_others(step_widths, steps):
    network, graph = _make(step_widths), steps.only(0)
    count = len(graph.nodes)
    values = torch.zeros(count + 1, 10)
    values[:count, :9] = graph.nodes
    values[count, 9] = 1.0
    to_global = torch.stack([torch.arange(count), torch.full((count,), count)])
    edges = torch.cat([graph.edge_index, to_global], dim=1)
    for layer in network.layers:
        values = torch.relu(layer(values, edges))
    torch.testing.assert_close(network.encode(*graph), values[count:])


def test_a_graph_without_nodes_is_its_global_node(step_widths):
    network = _make(step_widths)
    empty = (torch.zeros(0, 9), torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    encoded = network.encode(*empty, torch.zeros(0, 4), torch.zeros(2, 6))
    assert encoded.shape == (2, 12)
    assert torch.equal(encoded[0], encoded[1])
