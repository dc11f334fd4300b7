"""PMGNS on NumPy gives what PyTorch gives."""

from __future__ import annotations

import numpy as np
import pytest

from dippm.predictors.pmgns_forward import forward

_CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(name="network", scope="module")
def _network():
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch_geometric")
    from dippm.models.pmgns import PMGNS

    torch.manual_seed(11)
    return PMGNS().eval()


@pytest.fixture(name="weights", scope="module")
def _weights(network):
    return {name: tensor.numpy() for name, tensor in network.state_dict().items()}


def _graphs(sizes, *, seed=0):
    """Random joined graphs; the last two nodes of each have no edges."""
    random = np.random.default_rng(seed)
    edges, start = [np.zeros((2, 0), dtype=np.int64)], 0
    for size in sizes:
        if size > 3:
            pairs = np.sort(random.integers(0, size - 2, (2, 2 * size)), axis=0)
            edges.append(start + np.unique(pairs[:, pairs[0] < pairs[1]], axis=1))
        start += size
    return (
        random.standard_normal((start, 32)).astype(np.float32),
        np.concatenate(edges, axis=1),
        np.repeat(np.arange(len(sizes)), sizes),
        random.standard_normal((len(sizes), 5)).astype(np.float32),
    )


def _on_torch(network, arrays):
    import torch

    from dippm.models.message_rounds import whole_graphs

    nodes, edges, graph_ids, statics = (torch.from_numpy(array) for array in arrays)
    with torch.no_grad():
        return network(nodes, *whole_graphs(edges, graph_ids), statics).numpy()


@pytest.mark.parametrize("sizes", [(1,), (40,), (9, 30, 1, 17), (2, 0, 3), (3000,), (0,)])
def test_equals_pytorch(network, weights, sizes):
    arrays = _graphs(sizes)
    results = forward(weights, *arrays)
    assert results.dtype == np.float32
    assert results.shape == (len(sizes), 3)
    np.testing.assert_allclose(results, _on_torch(network, arrays), **_CLOSE)


def test_equals_pytorch_on_the_features_of_a_model(network, weights, builder):
    from dippm.features.pmgns import compute_features_of_batches
    from dippm.graph import OpKind

    y = builder.input(builder.N, 16, 8, 8)
    for _ in range(12):
        shortcut = y
        y = builder.node(
            OpKind.CONV, [y, builder.weight(16, 16, 3, 3)], builder.N, 16, 8, 8, kernel=(3, 3), stride=(1, 1), groups=1
        )
        y = builder.node(OpKind.RELU, [y], builder.N, 16, 8, 8)
        y = builder.node(OpKind.ADD, [y, shortcut], builder.N, 16, 8, 8)
    for sample in compute_features_of_batches(builder.graph(), [1, 64]):
        statics = np.log1p(sample.static_features[None]).astype(np.float32)
        ids = np.zeros(len(sample.node_features), dtype=np.int64)
        arrays = sample.node_features, sample.edge_index, ids, statics
        np.testing.assert_allclose(forward(weights, *arrays), _on_torch(network, arrays), **_CLOSE)


def test_edges_in_any_order_and_ids_in_any_order(network, weights):
    nodes, edges, ids, statics = _graphs((9, 30, 12))
    random = np.random.default_rng(1)
    place = random.permutation(len(nodes))
    back = np.argsort(place)
    shuffled = place[edges][:, random.permutation(edges.shape[1])]
    arrays = nodes[back], shuffled, ids[back], statics
    results = forward(weights, *arrays)
    np.testing.assert_allclose(results, _on_torch(network, arrays), **_CLOSE)
    np.testing.assert_allclose(results, forward(weights, nodes, edges, ids, statics), **_CLOSE)


def test_through_safetensors(weights, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "weights.safetensors"
    safetensors.save_file(weights, path)
    arrays = _graphs((9, 30))
    np.testing.assert_array_equal(forward(safetensors.load_file(path), *arrays), forward(weights, *arrays))


def test_other_widths():
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch_geometric")
    from dippm.models.pmgns import PMGNS

    torch.manual_seed(2)
    network = PMGNS(hidden=17, outputs=1).eval()
    weights = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    arrays = _graphs((9, 5))
    np.testing.assert_allclose(forward(weights, *arrays), _on_torch(network, arrays), **_CLOSE)
