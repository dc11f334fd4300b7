from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from dippm.models.anee import ANEE  # noqa: E402
from dippm.models.anee_ablations import (  # noqa: E402
    ANEEWithAverageReadout,
    ANEEWithConcatenatedEdges,
    ANEEWithGAT,
)
from dippm.models.dnnperf_blocks import AttentionReadout, MeanReadout  # noqa: E402

_SETTINGS = {"hidden": 12, "dropout": 0.0, "outputs": 3}


def _make(kind, step_widths):
    torch.manual_seed(3)
    return kind(**_SETTINGS, **step_widths).eval()


def test_each_differs_from_the_whole_in_one_part(step_widths):
    whole, average, gat, joined = (
        _make(kind, step_widths) for kind in (ANEE, ANEEWithAverageReadout, ANEEWithGAT, ANEEWithConcatenatedEdges)
    )
    assert isinstance(average.readout, MeanReadout)
    assert {type(network.readout) for network in (whole, gat, joined)} == {AttentionReadout}
    assert len(average.rounds) == len(whole.rounds) == len(gat.layers) == len(joined.layers)
    assert not hasattr(gat, "embed_edges")
    assert gat.embed_nodes.in_features == step_widths["node_features"]
    assert joined.embed_nodes.in_features == step_widths["node_features"] + step_widths["edge_features"]


def test_a_node_gets_the_mean_of_its_incoming_edges(step_widths):
    network = _make(ANEEWithConcatenatedEdges, step_widths)
    nodes, edges = torch.rand(3, 9), torch.rand(3, 4)
    joined = network.join(nodes, torch.tensor([[0, 1, 0], [2, 2, 1]]), edges)
    assert torch.equal(joined[:, :9], nodes)
    torch.testing.assert_close(joined[:, 9:], torch.stack([torch.zeros(4), edges[2], (edges[0] + edges[1]) / 2]))


def test_the_mean_cannot_tell_a_graph_from_two_copies_of_it(step_widths, steps):
    graph = steps.only(0)
    network = _make(ANEEWithAverageReadout, step_widths)
    count = len(graph.nodes)
    doubled = (
        torch.cat([graph.nodes, graph.nodes]),
        torch.cat([graph.edge_index, graph.edge_index + count], dim=1),
        torch.zeros(2 * count, dtype=torch.int64),
        torch.cat([graph.edges, graph.edges]),
        graph.graphs,
    )
    torch.testing.assert_close(network(*doubled), network(*graph))
