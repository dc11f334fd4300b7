"""What holds for every network of DNNPerf's evaluation, and what is each one's own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from dippm.models.anee import NodeEdgeRound  # noqa: E402
from dippm.models.dnnperf_blocks import AttentionReadout, softmax_by_group  # noqa: E402
from dippm.models.dnnperf_registry import DNNPERF_NETWORKS, make_dnnperf_network  # noqa: E402
from dippm.models.node_sequences import NODES_PER_STEP, make_cells, read_sequences  # noqa: E402

_CLOSE = {"rtol": 1e-5, "atol": 1e-6}
_WIDTHS = {"node_features": 9, "edge_features": 4, "graph_features": 6}
_RECURRENT = ("birnn", "arnn")


@dataclass(frozen=True)
class Steps:
    """What a network takes, in its order."""

    nodes: torch.Tensor
    edge_index: torch.Tensor
    graph_ids: torch.Tensor
    edges: torch.Tensor
    graphs: torch.Tensor

    def __iter__(self):
        return iter((self.nodes, self.edge_index, self.graph_ids, self.edges, self.graphs))

    def only(self, graph):
        """One of the graphs alone."""
        is_own = self.graph_ids == graph
        first = int(is_own.nonzero()[0])
        own_edges = is_own[self.edge_index[0]]
        count = int(is_own.sum())
        return Steps(
            self.nodes[is_own],
            self.edge_index[:, own_edges] - first,
            torch.zeros(count, dtype=torch.int64),
            self.edges[own_edges],
            self.graphs[graph : graph + 1],
        )


def make_steps(*sizes, seed=0):
    random = np.random.default_rng(seed)
    pairs, start = [np.zeros((2, 0), dtype=np.int64)], 0
    for size in sizes:
        if size > 3:
            drawn = np.sort(random.integers(0, size - 1, (2, 2 * size)), axis=0)
            pairs.append(start + np.unique(drawn[:, drawn[0] < drawn[1]], axis=1))
        start += size
    edge_index = np.concatenate(pairs, axis=1)

    def draw(*shape):
        return torch.from_numpy(random.random(shape).astype(np.float32))

    return Steps(
        draw(start, _WIDTHS["node_features"]),
        torch.from_numpy(edge_index),
        torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)),
        draw(edge_index.shape[1], _WIDTHS["edge_features"]),
        draw(len(sizes), _WIDTHS["graph_features"]),
    )


def make(name, **changes):
    torch.manual_seed(3)
    settings = {"hidden": 12, "dropout": 0.0, "outputs": 3, **_WIDTHS, **changes}
    return make_dnnperf_network(name, **settings).eval()


@pytest.fixture
def steps():
    return make_steps(9, 30, 4, 17)


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


def test_softmax_by_group_against_softmax():
    torch.manual_seed(1)
    scores = 50 * torch.randn(12, 3)
    group = torch.tensor([0] * 5 + [2] * 7)
    weights, normalizer = softmax_by_group(scores, group, groups=4)
    torch.testing.assert_close(weights[:5], scores[:5].softmax(dim=0))
    torch.testing.assert_close(weights[5:], scores[5:].softmax(dim=0))
    torch.testing.assert_close(normalizer[[0, 2]], torch.stack([scores[:5].logsumexp(0), scores[5:].logsumexp(0)]))
    assert not normalizer[[1, 3]].any()


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


def test_the_attention_readout_tells_a_graph_from_two_copies_of_it():
    torch.manual_seed(2)
    readout = AttentionReadout(6, 4)
    nodes, sums = torch.randn(7, 6), torch.rand(1, 4)
    one = readout(nodes, torch.zeros(7, dtype=torch.int64), sums)
    two = readout(torch.cat([nodes, nodes]), torch.zeros(14, dtype=torch.int64), sums)
    torch.testing.assert_close(one[:, :6], two[:, :6])
    torch.testing.assert_close(two[:, 6:] - one[:, 6:], torch.full((1, 6), float(np.log(2)) / 8))


def test_sequences_against_one_by_one():
    torch.manual_seed(4)
    cells, counts = make_cells(3), torch.tensor([2 * NODES_PER_STEP, 0, NODES_PER_STEP + 1, 3])
    graph_ids = torch.repeat_interleave(torch.arange(4), counts)
    values = torch.randn(len(graph_ids), 3)
    for backwards in (False, True):
        found = read_sequences(cells, values, graph_ids, counts, backwards=backwards)
        for graph in range(4):
            rows = values[graph_ids == graph]
            rows = rows.flip(0) if backwards else rows
            steps = max(-(-len(rows) // NODES_PER_STEP), 1)
            filled = torch.zeros(steps * NODES_PER_STEP, 3)
            filled[: len(rows)] = rows
            _, last = cells(filled.reshape(steps, -1))
            torch.testing.assert_close(found[graph], last[0])
