"""What holds for every network."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from dippm.models.registry import NETWORKS, make_network  # noqa: E402

_CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture(name="network", params=list(NETWORKS))
def _network(request):
    torch.manual_seed(3)
    return make_network(request.param, hidden=24).eval()


@pytest.fixture(name="on_graphs", params=[name for name in NETWORKS if name != "mlp"])
def _on_graphs(request):
    torch.manual_seed(3)
    return make_network(request.param, hidden=24).eval()


def test_one_row_of_results_per_graph(network, graphs):
    results = network(*graphs)
    assert results.shape == (4, 3)
    assert results.dtype == torch.float32
    assert torch.isfinite(results).all()


@pytest.mark.parametrize("name", list(NETWORKS))
def test_every_width_is_free(name, graphs):
    network = make_network(name, hidden=7, outputs=2, node_features=11, static_features=4)
    results = network(
        *replace(graphs, node_features=graphs.node_features[:, :11], static_features=graphs.static_features[:, :4])
    )
    assert results.shape == (4, 2)


def test_numbering_of_nodes_and_order_of_edges_do_not_matter(network, graphs):
    torch.manual_seed(5)
    place = torch.randperm(len(graphs.node_features))
    back = torch.argsort(place)
    shuffled = torch.randperm(graphs.edge_index.shape[1])
    numbered = replace(
        graphs,
        node_features=graphs.node_features[back],
        edge_index=place[graphs.edge_index][:, shuffled],
        graph_ids=graphs.graph_ids[back],
    )
    results = network(*numbered)
    torch.testing.assert_close(results, network(*graphs), **_CLOSE)


def test_order_of_graphs_does_not_matter(network, graphs):
    swapped = torch.tensor([2, 0, 3, 1])
    moved = replace(
        graphs, graph_ids=swapped[graphs.graph_ids], static_features=graphs.static_features[swapped.argsort()]
    )
    results = network(*moved)
    torch.testing.assert_close(results[swapped], network(*graphs), **_CLOSE)


def test_a_batch_of_graphs_equals_one_by_one(network, graphs):
    together = network(*graphs)
    for graph in range(4):
        is_own = graphs.graph_ids == graph
        first = int(is_own.nonzero()[0])
        edges = graphs.edge_index[:, is_own[graphs.edge_index[0]]] - first
        nodes = graphs.node_features[is_own]
        ids = torch.zeros(len(nodes), dtype=torch.int64)
        single = replace(
            graphs,
            node_features=nodes,
            edge_index=edges,
            graph_ids=ids,
            static_features=graphs.static_features[graph : graph + 1],
        )
        alone = network(*single)
        torch.testing.assert_close(alone, together[graph : graph + 1], **_CLOSE)


def test_gradients_reach_every_parameter(network, graphs):
    network.train()
    network(*graphs).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_graphs_without_edges_and_without_nodes(network, graphs):
    none = torch.zeros((2, 0), dtype=torch.int64)
    without_edges = network(*replace(graphs, edge_index=none))
    assert torch.isfinite(without_edges).all()
    nothing = network(
        *replace(graphs, node_features=graphs.node_features[:0], edge_index=none, graph_ids=graphs.graph_ids[:0])
    )
    assert nothing.shape == (4, 3)
    assert torch.isfinite(nothing).all()


def test_edges_decide(on_graphs, graphs):
    results = on_graphs(*graphs)
    places = torch.arange(len(graphs.node_features))
    is_same = graphs.graph_ids[1:] == graphs.graph_ids[:-1]
    chain = torch.stack([places[:-1], places[1:]])[:, is_same]
    changed = on_graphs(*replace(graphs, edge_index=chain))
    assert (changed - results).abs().amax(dim=1).min() > 1e-5


def test_messages_flow_from_source_to_target(on_graphs, new_graphs):
    """Only what lies downstream of a node notices it."""
    chain = replace(new_graphs(3), edge_index=torch.tensor([[0, 1], [1, 2]]))
    nodes = chain.node_features
    changed = nodes.clone()
    changed[1] += 1.0
    before, after = nodes, changed
    for convolution in on_graphs.convolutions:
        before, after = (torch.relu(chain.convolve(on_graphs, convolution, values)) for values in (before, after))
        assert torch.equal(before[0], after[0])
        assert not torch.equal(before[2], after[2])


def test_three_convolutions_and_three_fully_connected_blocks(on_graphs):
    assert len(on_graphs.convolutions) == 3
    assert len(on_graphs.head.layers) == 3


def test_the_number_of_operators_counts(on_graphs, graphs):
    """The same operators twice are another model: a mean alone would not tell."""
    nodes, edges = graphs.node_features[:9], graphs.edge_index[:, graphs.edge_index[1] < 9]
    once = replace(
        graphs,
        node_features=nodes,
        edge_index=edges,
        graph_ids=torch.zeros(9, dtype=torch.int64),
        static_features=graphs.static_features[:1],
    )
    twice = replace(
        once,
        node_features=torch.cat([nodes, nodes]),
        edge_index=torch.cat([edges, edges + 9], dim=1),
        graph_ids=torch.zeros(18, dtype=torch.int64),
    )
    assert (on_graphs(*once) - on_graphs(*twice)).abs().max() > 1e-4


def test_static_features_decide(network, graphs):
    changed = network(*replace(graphs, static_features=graphs.static_features + 1.0))
    assert (changed - network(*graphs)).abs().amax(dim=1).min() > 1e-5


def test_dropout_acts_in_training_only(network, graphs):
    assert torch.equal(network(*graphs), network(*graphs))
    network.train()
    assert not torch.equal(network(*graphs), network(*graphs))


@pytest.mark.parametrize("name", list(NETWORKS))
def test_a_seed_gives_the_same_weights(name):
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        states.append(make_network(name, hidden=8).state_dict())
    first, second, other = states
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_mixed_precision_pools_in_full(name, new_graphs):
    """The sum over many large nodes would drown what each adds in the eight bits of bfloat16."""
    torch.manual_seed(3)
    network = make_network(name, hidden=24).eval()
    drawn = new_graphs(3000)
    large = replace(drawn, node_features=100.0 * drawn.node_features)
    with torch.no_grad():
        full = network(*large)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed = network(*large).float()
    assert torch.isfinite(mixed).all()
    torch.testing.assert_close(mixed, full, rtol=0.05, atol=0.05 * float(full.abs().max()))


def test_all_networks_are_made_alike(network):
    made = inspect.signature(type(network).__init__).parameters
    assert {name: given.default for name, given in made.items() if name != "self"} == {
        "hidden": 512,
        "dropout": 0.05,
        "outputs": 3,
        "node_features": 32,
        "static_features": 5,
    }
    assert all(given.kind is given.KEYWORD_ONLY for name, given in made.items() if name != "self")
    taken = inspect.signature(type(network).forward).parameters
    assert list(taken) == ["self", "node_features", "rounds", "members", "static_features"]
