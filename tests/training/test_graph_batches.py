"""Batches of graphs, and their order."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch

from dippm.features.scaling import Scaling
from dippm.models.registry import NETWORKS, make_network
from dippm.training.graph_batches import EpochBatches, GraphTensors

# Sums of float32 in another order.
_CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(name="tensors")
def _tensors(samples) -> GraphTensors:
    return GraphTensors.of(samples, Scaling.fit(samples.node_features, samples.static_features, samples.targets))


def test_batch_by_hand(samples, tensors) -> None:
    batch = tensors[[5, 2]]
    nodes, edges = samples.node_counts[[5, 2]], np.diff(samples.edge_offsets)[[5, 2]]
    assert batch.graph_ids.tolist() == [0] * nodes[0] + [1] * nodes[1]
    own = [samples.edge_index[:, samples.edge_offsets[i] : samples.edge_offsets[i + 1]] for i in (5, 2)]
    assert batch.edge_index.tolist() == np.concatenate([own[0], own[1] + nodes[0]], axis=1).tolist()
    assert batch.edge_index.shape == (2, edges.sum())
    assert batch.static_features.shape == (2, 5)
    assert batch.targets.shape == (2, 3)
    first = tensors.node_features[samples.node_offsets[2] : samples.node_offsets[3]]
    assert torch.equal(batch.node_features[nodes[0] :], first)


@pytest.mark.parametrize("name", NETWORKS)
def test_batch_is_one_by_one(samples, tensors, name: str) -> None:
    torch.manual_seed(0)
    network = make_network(name, hidden=16).eval()
    with torch.inference_mode():
        together = network(*tensors[list(range(len(samples)))][:4])
        apart = torch.cat([network(*tensors[[index]][:4]) for index in range(len(samples))])
    torch.testing.assert_close(together, apart, **_CLOSE)
    assert apart.std(dim=0).min() > 0


def test_order_depends_on_seed_and_epoch_alone() -> None:
    chosen = np.arange(10, 30)

    def draw(seed: int, epoch: int) -> list[list[int]]:
        batches = EpochBatches(chosen, batch_size=6, seed=seed)
        batches.set_epoch(epoch)
        return list(batches)

    assert draw(0, 3) == draw(0, 3)
    assert draw(0, 3) != draw(0, 4)
    assert draw(0, 3) != draw(1, 3)
    assert [len(batch) for batch in draw(0, 3)] == [6, 6, 6, 2]
    assert sorted(chain.from_iterable(draw(0, 3))) == chosen.tolist()
    assert list(chain.from_iterable(EpochBatches(chosen, batch_size=6, seed=None))) == chosen.tolist()


@pytest.mark.parametrize(("count", "processes"), [(20, 2), (3, 4), (24, 3)])
def test_processes_share_an_epoch_in_equal_numbers(count: int, processes: int) -> None:
    shares = [
        EpochBatches(np.arange(count), batch_size=4, seed=1, rank=rank, processes=processes)
        for rank in range(processes)
    ]
    drawn = [list(share) for share in shares]
    assert len({len(each) for each in drawn}) == 1
    assert [len(share) for share in shares] == [len(each) for each in drawn]
    assert {sample for each in drawn for batch in each for sample in batch} == set(range(count))
