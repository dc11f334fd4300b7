from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from dippm.models import arnn  # noqa: E402
from dippm.models.arnn import ARNN, COLUMNS  # noqa: E402


def _make(step_widths):
    torch.manual_seed(3)
    return ARNN(hidden=12, dropout=0.0, outputs=3, **step_widths).eval()


def test_the_sum_of_columns_is_a_layer_over_the_adjacency_row(step_widths, steps):
    network, graph = _make(step_widths), steps.only(1)
    count = len(graph.nodes)
    rows = torch.zeros(count, COLUMNS)
    rows[graph.edge_index[1], graph.edge_index[0]] = 1.0
    seen = []
    handle = network.cells.register_forward_pre_hook(lambda _module, given: seen.append(given[0]))
    network(*graph)
    handle.remove()
    expected = torch.relu(network.embed_nodes(graph.nodes) + rows @ network.columns.weight)
    torch.testing.assert_close(seen[0].reshape(-1, 12)[:count], expected)


def test_sources_far_on_share_the_last_column(step_widths, steps, monkeypatch):
    monkeypatch.setattr(arnn, "COLUMNS", 4)
    network, graph = _make(step_widths), steps.only(0)
    assert network.columns.num_embeddings == 4
    before = network(*graph)
    far = graph.edge_index.clone()
    is_far = far[0] >= 3
    far[0, is_far] = 3
    moved = network(graph.nodes, far, graph.graph_ids, graph.edges, graph.graphs)
    assert is_far.any()
    torch.testing.assert_close(moved, before)
