"""Joined graphs to run networks on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class JoinedGraphs:
    """Graphs as they are; gives what a network takes, in its order."""

    node_features: torch.Tensor
    edge_index: torch.Tensor
    graph_ids: torch.Tensor
    static_features: torch.Tensor

    def __iter__(self):
        from dippm.models.message_rounds import whole_graphs

        rounds, members = whole_graphs(self.edge_index, self.graph_ids)
        return iter((self.node_features, rounds, members, self.static_features))

    def convolve(self, network, convolution, values):
        """Values of all operators after a graph block of the network."""
        return network.convolve(convolution, values, list(self)[1][0])

    def adjacency(self) -> torch.Tensor:
        """Ones where a message goes from column to row."""
        count = len(self.node_features)
        result = self.node_features.new_zeros(count, count)
        result[self.edge_index[1], self.edge_index[0]] = 1.0
        return result


def make_graphs(*sizes: int, seed: int = 0) -> JoinedGraphs:
    """Random graphs, edges from lower to higher nodes, with a few nodes in each that have none."""
    import torch

    random = np.random.default_rng(seed)
    edges, start = [np.zeros((2, 0), dtype=np.int64)], 0
    for size in sizes:
        if size > 3:
            pairs = np.sort(random.integers(0, size - 2, (2, 2 * size)), axis=0)
            edges.append(start + np.unique(pairs[:, pairs[0] < pairs[1]], axis=1))
        start += size
    return JoinedGraphs(
        node_features=torch.from_numpy(random.standard_normal((start, 32)).astype(np.float32)),
        edge_index=torch.from_numpy(np.concatenate(edges, axis=1)),
        graph_ids=torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)),
        static_features=torch.from_numpy(random.standard_normal((len(sizes), 5)).astype(np.float32)),
    )


@pytest.fixture(name="graphs")
def _graphs() -> JoinedGraphs:
    return make_graphs(9, 30, 4, 17)


@pytest.fixture(name="new_graphs", scope="session")
def _new_graphs():
    return make_graphs


STEP_WIDTHS = {"node_features": 9, "edge_features": 4, "graph_features": 6}


@dataclass(frozen=True)
class Steps:
    """What a network of training steps takes, in its order."""

    nodes: torch.Tensor
    edge_index: torch.Tensor
    graph_ids: torch.Tensor
    edges: torch.Tensor
    graphs: torch.Tensor

    def __iter__(self):
        return iter((self.nodes, self.edge_index, self.graph_ids, self.edges, self.graphs))

    def only(self, graph):
        """One of the graphs alone."""
        import torch

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
    """Random graphs with features of nodes and edges, edges from lower to higher nodes."""
    import torch

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
        draw(start, STEP_WIDTHS["node_features"]),
        torch.from_numpy(edge_index),
        torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)),
        draw(edge_index.shape[1], STEP_WIDTHS["edge_features"]),
        draw(len(sizes), STEP_WIDTHS["graph_features"]),
    )


@pytest.fixture
def steps():
    return make_steps(9, 30, 4, 17)


@pytest.fixture(scope="session")
def step_widths() -> dict[str, int]:
    """Features of nodes, edges and graphs of the training steps."""
    return STEP_WIDTHS
