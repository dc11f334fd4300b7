"""Small forward graphs, and the training steps that are made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dippm.costs import LiveMemory, MemoryTimeline, Workload, live_memory
from dippm.costs.training_step.training_graph import Phase, TrainingGraph, TrainingSettings, make_training_graph
from dippm.graph import Graph, Node, OpKind

_CONV = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (1, 1), "groups": 1}


@pytest.fixture
def network(builder: Any) -> Callable[..., Graph]:
    """Convolution, batch norm, ReLU, as often as asked for; global mean; linear layer."""

    def make(*, layers: int = 1) -> Graph:
        n = builder.N
        x = builder.input(n, 16, 32, 32)
        for _ in range(layers):
            x = builder.node(OpKind.CONV, [x, builder.weight(16, 16, 3, 3)], n, 16, 32, 32, **_CONV)
            scale, shift = builder.weight(16), builder.weight(16)
            x = builder.node(OpKind.BATCH_NORM, [x, scale, shift], n, 16, 32, 32, axes_size=16)
            x = builder.node(OpKind.RELU, [x], n, 16, 32, 32)
        x = builder.node(OpKind.REDUCE, [x], n, 16, function="mean", axes=(2, 3))
        x = builder.node(OpKind.LINEAR, [x, builder.weight(10, 16), builder.weight(10)], n, 10)
        return builder.graph(x)

    return make


@pytest.fixture
def blocks(builder: Any) -> Callable[..., Graph]:
    """Linear layers and GELUs in numbered modules, with a residual around each."""

    def make(count: int = 4) -> Graph:
        n = builder.N
        x = builder.node(OpKind.LINEAR, [builder.input(n, 64), builder.weight(256, 64)], n, 256)
        first = len(builder.nodes)
        scopes = []
        for block in range(count):
            y = builder.node(OpKind.LINEAR, [x, builder.weight(256, 256)], n, 256)
            y = builder.node(OpKind.GELU, [y], n, 256)
            y = builder.node(OpKind.LINEAR, [y, builder.weight(256, 256)], n, 256)
            x = builder.node(OpKind.ADD, [x, y], n, 256)
            scopes += [f"blocks.{block}.mlp"] * 4
        for position, scope in enumerate(scopes):
            builder.nodes[first + position] = replace(builder.nodes[first + position], scope=scope)
        return builder.graph(x)

    return make


@pytest.fixture
def train() -> Callable[..., TrainingGraph]:
    """The training step of a graph, with settings by name."""
    return lambda graph, **settings: make_training_graph(graph, TrainingSettings(**settings))


@pytest.fixture
def kinds() -> Callable[[TrainingGraph, Phase], list[OpKind]]:
    """Kinds of the nodes of one phase, in their order."""
    return lambda training, phase: [
        node.kind for node, of in zip(training.graph.nodes, training.phase, strict=True) if of == phase
    ]


@pytest.fixture
def live() -> Callable[[TrainingGraph, int], LiveMemory]:
    """Live memory of a training step at a batch."""

    def measure(training: TrainingGraph, batch: int) -> LiveMemory:
        timeline = MemoryTimeline.from_workload(Workload.from_graph(training.graph, training.precision))
        return live_memory(timeline, [batch])

    return measure


@pytest.fixture
def gradients_of() -> Callable[[Graph, int], list[Node]]:
    """What the backward pass runs for one node of the forward pass."""

    def find(graph: Graph, position: int, **settings: Any) -> list[Node]:
        training = make_training_graph(graph, TrainingSettings(**settings))
        # In the training graph as in the graph, the forward pass stands first.
        return [
            node
            for node, twin, phase in zip(training.graph.nodes, training.twin, training.phase, strict=True)
            if phase == Phase.BACKWARD and twin == position
        ]

    return find
