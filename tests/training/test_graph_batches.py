"""Batches of graphs, and their order."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch

from dippm.features.scaling import Scaling
from dippm.models.message_rounds import whole_graphs
from dippm.models.registry import NETWORKS, make_network
from dippm.training.graph_batches import EpochBatches, GraphTensors

# Sums of float32 in another order.
_CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(name="scaling")
def _scaling(samples) -> Scaling:
    return Scaling.fit(samples.node_features, samples.static_features, samples.targets)


@pytest.fixture(name="tensors")
def _tensors(samples, scaling) -> GraphTensors:
    return GraphTensors.of(samples, scaling)


def test_batch_by_hand(samples, tensors) -> None:
    batch = tensors[[5, 2]]
    assert (
        torch.bincount(batch.members.graph_ids, batch.members.counts).tolist() == samples.node_counts[[5, 2]].tolist()
    )
    assert batch.static_features.shape == (2, 5)
    assert batch.targets.shape == (2, 3)
    before = len(batch.node_features)
    for messages in batch.rounds:
        assert len(messages.degrees) == before
        assert messages.own.max() < before
        assert messages.edge_index[0].max() < before
        assert messages.edge_index[1].max() < len(messages.own)
        before = len(messages.own)
    assert batch.members.rows.unique().tolist() == list(range(before))


@pytest.mark.parametrize("name", NETWORKS)
def test_alike_operators_in_one_row_give_what_whole_graphs_give(samples, tensors, scaling, name: str) -> None:
    torch.manual_seed(0)
    network = make_network(name, hidden=16, dropout=0.0)
    chosen = [5, 2, 0, 1]
    batch = tensors[chosen]
    results = network(*batch[:4])
    results.square().sum().backward()
    gradients = {key: parameter.grad for key, parameter in network.named_parameters()}
    assert len(batch.node_features) < samples.node_counts[chosen].sum()
    network.zero_grad()
    whole = network(*_whole(samples, scaling, chosen))
    whole.square().sum().backward()
    torch.testing.assert_close(results, whole, **_CLOSE)
    for key, parameter in network.named_parameters():
        torch.testing.assert_close(gradients[key], parameter.grad, **_CLOSE)


def _whole(samples, scaling, chosen):
    nodes, edges, first = [], [], 0
    for sample in chosen:
        nodes.append(samples.node_features[samples.node_offsets[sample] : samples.node_offsets[sample + 1]])
        start, end = samples.edge_offsets[[sample, sample + 1]]
        edges.append(samples.edge_index[:, start:end] + first)
        first += len(nodes[-1])
    graph_ids = torch.repeat_interleave(torch.arange(len(chosen)), torch.from_numpy(samples.node_counts[chosen]))
    return (
        torch.from_numpy(scaling.scale_nodes(np.concatenate(nodes))),
        *whole_graphs(torch.from_numpy(np.concatenate(edges, axis=1)), graph_ids),
        torch.from_numpy(scaling.scale_statics(samples.static_features[chosen])),
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_batch_is_one_by_one(samples, tensors, name: str) -> None:
    torch.manual_seed(0)
    network = make_network(name, hidden=16).eval()
    with torch.inference_mode():
        together = network(*tensors[list(range(len(samples)))][:4])
        apart = torch.cat([network(*tensors[[index]][:4]) for index in range(len(samples))])
    torch.testing.assert_close(together, apart, **_CLOSE)
    assert apart.std(dim=0).min() > 0


def test_tensors_move_whole(tensors) -> None:
    moved = tensors.to("meta")
    assert {part.device.type for classes in moved.rounds for part in classes} == {"meta"}
    assert {moved.node_features.device.type, moved.members.device.type, moved.targets.device.type} == {"meta"}


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
