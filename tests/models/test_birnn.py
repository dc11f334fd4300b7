from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from dippm.models.birnn import BiRNN  # noqa: E402
from dippm.models.node_sequences import count_nodes, read_sequences  # noqa: E402


def test_a_graph_is_both_last_states_side_by_side(step_widths, steps):
    torch.manual_seed(3)
    network = BiRNN(hidden=12, dropout=0.0, outputs=3, **step_widths).eval()
    encoded = network.encode(*steps)
    assert encoded.shape == (4, 24)
    nodes = torch.relu(network.embed_nodes(steps.nodes))
    counts = count_nodes(steps.graph_ids, graphs=4)
    for cells, half, backwards in (
        (network.forwards, encoded[:, :12], False),
        (network.backwards, encoded[:, 12:], True),
    ):
        found = read_sequences(cells, nodes, steps.graph_ids, counts, backwards=backwards)
        torch.testing.assert_close(found, half)


def test_turned_round_with_its_cells_exchanged_it_says_the_same(step_widths, steps):
    torch.manual_seed(3)
    network = BiRNN(hidden=12, dropout=0.0, outputs=3, **step_widths).eval()
    graph = steps.only(3)
    encoded = network.encode(*graph)
    network.forwards, network.backwards = network.backwards, network.forwards
    turned = network.encode(graph.nodes.flip(0), graph.edge_index, graph.graph_ids, graph.edges, graph.graphs)
    torch.testing.assert_close(turned, encoded.roll(12, dims=1))
