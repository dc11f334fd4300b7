from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")
from dippm.models.anee import NodeEdgeRound  # noqa: E402


def test_a_round_is_its_equations():
    torch.manual_seed(2)
    layer = NodeEdgeRound(5)
    nodes, edges, edge_index = torch.randn(4, 5), torch.randn(3, 5), torch.tensor([[0, 1, 2], [3, 3, 1]])
    found_nodes, found_edges = layer(nodes, edges, edge_index)
    triples = [
        torch.nn.functional.leaky_relu(layer.of_source(nodes[u]) + layer.of_edge(e) + layer.of_target(nodes[v]), 0.2)
        for (u, v), e in zip(edge_index.T.tolist(), edges, strict=True)
    ]
    torch.testing.assert_close(found_edges, edges + torch.stack(triples))
    scores = torch.cat([layer.score(triple) for triple in triples])
    weights = scores[:2].softmax(dim=0)
    messages = {3: weights[0] * found_edges[0] + weights[1] * found_edges[1], 1: found_edges[2]}
    for v in range(4):
        message = messages.get(v, torch.zeros(5))
        wanted = nodes[v] + torch.relu(layer.of_self(nodes[v]) + layer.of_message(message))
        torch.testing.assert_close(found_nodes[v], wanted)
