"""What holds for every network of DNNPerf's evaluation, and what is each one's own."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")
from dippm.models.dnnperf_registry import DNNPERF_NETWORKS, make_dnnperf_network  # noqa: E402

_CLOSE = {"rtol": 1e-5, "atol": 1e-6}


_WIDTHS = {"node_features": 9, "edge_features": 4, "graph_features": 6}


_RECURRENT = ("birnn", "arnn")


def make(name, **changes):
    torch.manual_seed(3)
    settings = {"hidden": 12, "dropout": 0.0, "outputs": 3, **_WIDTHS, **changes}
    return make_dnnperf_network(name, **settings).eval()


@pytest.fixture(name="network", params=list(DNNPERF_NETWORKS))
def _network(request):
    return make(request.param)


def test_one_row_of_results_per_graph(network, steps):
    results = network(*steps)
    assert results.shape == (4, 3)
    assert torch.isfinite(results).all()


def test_a_batch_of_graphs_equals_one_by_one(network, steps):
    together = network(*steps)
    for graph in range(4):
        torch.testing.assert_close(network(*steps.only(graph)), together[graph : graph + 1], **_CLOSE)


def test_gradients_reach_every_parameter(network, steps):
    network.train()
    network(*steps).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_graphs_without_edges_and_without_nodes(network, steps):
    no_edges = (torch.zeros((2, 0), dtype=torch.int64), torch.zeros((0, 4)))
    results = network(steps.nodes, no_edges[0], steps.graph_ids, no_edges[1], steps.graphs)
    assert torch.isfinite(results).all()
    # The third graph has lost its nodes.
    kept = steps.graph_ids != 2
    results = network(steps.nodes[kept], no_edges[0], steps.graph_ids[kept], no_edges[1], steps.graphs)
    assert results.shape == (4, 3)
    assert torch.isfinite(results).all()


@pytest.mark.parametrize("name", [name for name in DNNPERF_NETWORKS if name not in _RECURRENT])
def test_numbering_of_nodes_and_order_of_edges_do_not_matter(name, steps):
    network = make(name)
    torch.manual_seed(5)
    place = torch.cat([torch.randperm(9), 9 + torch.randperm(30), torch.arange(39, len(steps.nodes))])
    back = torch.argsort(place)
    shuffled = torch.randperm(steps.edge_index.shape[1])
    results = network(
        steps.nodes[back], place[steps.edge_index][:, shuffled], steps.graph_ids, steps.edges[shuffled], steps.graphs
    )
    torch.testing.assert_close(results, network(*steps), **_CLOSE)


@pytest.mark.parametrize("name", _RECURRENT)
def test_recurrent_networks_read_nodes_in_order(name, steps):
    place = torch.arange(len(steps.nodes))
    place[[0, 5]] = place[[5, 0]]
    network = make(name)
    results = network(steps.nodes[place], steps.edge_index, steps.graph_ids, steps.edges, steps.graphs)
    difference = (results - network(*steps)).abs().amax(dim=1)
    assert difference[0] > 1e-6
    torch.testing.assert_close(difference[1:], torch.zeros(3), **_CLOSE)


@pytest.mark.parametrize(
    ("name", "reads_edges", "reads_edge_features", "reads_sums"),
    [
        ("anee", True, True, True),
        ("anee-average-readout", True, True, False),
        ("anee-concatenated-edges", True, True, True),
        ("anee-gat", True, False, True),
        ("brp-nas", True, False, False),
        ("arnn", True, False, False),
        ("birnn", False, False, False),
        ("mlp", False, False, True),
    ],
)
def test_what_each_network_looks_at(name, reads_edges, reads_edge_features, reads_sums, steps):
    network = make(name)
    results = network(*steps)
    turned = network(steps.nodes, steps.edge_index.flip(0), steps.graph_ids, steps.edges, steps.graphs)
    assert torch.equal(turned, results) is not reads_edges
    other = network(steps.nodes, steps.edge_index, steps.graph_ids, steps.edges + 1, steps.graphs)
    assert torch.equal(other, results) is not reads_edge_features
    other = network(steps.nodes + 1, steps.edge_index, steps.graph_ids, steps.edges, steps.graphs)
    assert torch.equal(other, results) is (name == "mlp")
    other = network(steps.nodes, steps.edge_index, steps.graph_ids, steps.edges, steps.graphs + 1)
    assert torch.equal(other, results) is not reads_sums
