from typing import Any

import numpy as np
import pytest
import torch

from dippm.costs.precision import Precision
from dippm.features.physical import Messages, PhysicalPlan
from dippm.graph import OpKind
from dippm.models.additive import AdditiveNetwork
from dippm.predictors.additive_forward import Ensemble
from dippm.predictors.network_steps import Neighbours


def _draw(random: np.random.Generator, *, nodes: int, edges: int) -> Messages:
    target, source = np.divmod(np.sort(random.choice(nodes * nodes, edges, replace=False)), nodes)
    count = np.bincount(target, minlength=nodes)
    return Messages(
        source=source,
        target=target,
        weight=(1.0 / count[target]).astype(np.float32),
    )


def _corrections(members: list[AdditiveNetwork], features: np.ndarray, *messages: Messages) -> np.ndarray:
    """Corrections by each member, [B, M, N, 2]."""
    ensemble = Ensemble([{name: values.numpy() for name, values in each.state_dict().items()} for each in members])
    neighbours = [Neighbours.of(each, count=features.shape[1]) for each in messages]
    nothing = np.zeros((features.shape[1], 0), dtype=np.float32)
    known = ensemble.embed(nothing, ensemble.first_layer(slice(0), has_bias=False))
    number = np.arange(features.shape[1])
    return ensemble.corrections(features, ensemble.first_layer(has_bias=True), known, number, *neighbours)


@pytest.mark.parametrize(("nodes", "edges"), [(50, 0), (50, 1), (50, 200), (64, 64 * 64), (600, 1), (600, 2000)])
def test_numpy_and_torch_agree(nodes: int, edges: int) -> None:
    torch.manual_seed(1)
    random = np.random.default_rng(1)
    networks = [AdditiveNetwork(inputs=7, width=16) for _ in range(2)]
    for network in networks:
        torch.nn.init.normal_(network.output.weight)
    producers, consumers = (_draw(random, nodes=nodes, edges=edges) for _ in range(2))
    features = random.normal(size=(3, nodes, 7)).astype(np.float32)
    ours = _corrections(networks, features, producers, consumers)
    tensors = [
        (torch.from_numpy(each.source), torch.from_numpy(each.target), torch.from_numpy(each.weight))
        for each in (producers, consumers)
    ]
    with torch.no_grad():
        theirs = np.array(
            [[network(torch.from_numpy(batch), *tensors).numpy() for network in networks] for batch in features]
        )
    assert ours.dtype == np.float32
    assert np.abs(theirs).max() > 0.1
    assert ours == pytest.approx(theirs, abs=1e-4)


def test_features_can_be_embedded_in_parts() -> None:
    torch.manual_seed(3)
    network = AdditiveNetwork(inputs=9, width=8)
    torch.nn.init.normal_(network.output.weight)
    ensemble = Ensemble([{name: values.numpy() for name, values in network.state_dict().items()}])
    random = np.random.default_rng(3)
    features, none = random.normal(size=(2, 70, 9)).astype(np.float32), _draw(random, nodes=70, edges=0)
    columns, number = np.array([0, 8, 3]), random.integers(4, size=70)
    rest, rows = np.setdiff1d(np.arange(9), columns), random.normal(size=(4, 3)).astype(np.float32)
    features[..., columns] = rows[number]
    known = ensemble.embed(rows, ensemble.first_layer(columns, has_bias=False))
    silence = Neighbours.of(none, count=70)
    in_parts = ensemble.corrections(
        features[..., rest], ensemble.first_layer(rest, has_bias=True), known, number, silence, silence
    )
    assert in_parts == pytest.approx(_corrections([network], features, none, none), abs=1e-5)


def _means(neighbours: list[list[int]]) -> Messages:
    """Messages between all operators, each for itself."""
    target = [own for own, others in enumerate(neighbours) for _ in others]
    return Messages(
        source=np.array([other for others in neighbours for other in others], dtype=np.int64),
        target=np.array(target, dtype=np.int64),
        weight=np.array([1 / len(others) for others in neighbours for _ in others], dtype=np.float32),
    )


def test_classes_stand_for_all_their_operators(builder: Any) -> None:
    """Two rounds over classes give every operator what two rounds over all operators give it."""
    n = builder.N
    x = builder.input(n, 16, 8, 8)
    for _ in range(7):
        shortcut = x
        for _ in range(2):
            x = builder.node(OpKind.RELU, [x], n, 16, 8, 8)
            x = builder.node(OpKind.MUL, [x, builder.weight(16, 1, 1)], n, 16, 8, 8)
        x = builder.node(OpKind.ADD, [x, shortcut], n, 16, 8, 8)
    graph = builder.graph()
    plan = PhysicalPlan.from_graph(graph, Precision.FP32)
    assert len(plan.node) < len(graph.nodes)
    producer = {index: position for position, node in enumerate(graph.nodes) for index in node.outputs}
    reads = [[producer[index] for index in node.inputs if index in producer] for node in graph.nodes]
    readers = [
        [other for other, read in enumerate(reads) for index in read if index == own] for own in range(len(reads))
    ]
    torch.manual_seed(2)
    network = AdditiveNetwork(inputs=plan.static.shape[1], width=16)
    torch.nn.init.normal_(network.output.weight)
    merged = _corrections([network], plan.static[None], plan.producers, plan.consumers)[:, 0]
    every = _corrections([network], plan.static[plan.class_of][None], _means(reads), _means(readers))[:, 0]
    assert np.ptp(every[0, :, 0]) > 0.1
    assert merged[:, plan.class_of] == pytest.approx(every, abs=1e-5)
