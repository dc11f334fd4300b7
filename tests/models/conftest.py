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
    """What a network takes, in its order."""

    node_features: torch.Tensor
    edge_index: torch.Tensor
    graph_ids: torch.Tensor
    static_features: torch.Tensor

    def __iter__(self):
        return iter((self.node_features, self.edge_index, self.graph_ids, self.static_features))

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
