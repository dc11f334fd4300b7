"""Readout of a graph."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from dippm.models import pooling  # noqa: E402
from dippm.models.message_rounds import Members, whole_graphs  # noqa: E402
from dippm.models.pooling import pool_nodes  # noqa: E402


def test_pooling_by_hand():
    embeddings = torch.tensor([[1.0, 0.0], [3.0, 4.0], [5.0, 6.0]])
    pooled = pool_nodes(embeddings, _members(0, 0, 2), graphs=3)
    expected = [
        [2.0, 2.0, _soft(1.0, 3.0), _soft(0.0, 4.0)],
        [0.0, 0.0, 0.0, 0.0],
        [5.0, 6.0, _soft(5.0), _soft(6.0)],
    ]
    torch.testing.assert_close(pooled, torch.tensor(expected))


def test_a_row_may_stand_for_several_operators_and_belong_to_several_graphs():
    embeddings = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    members = Members(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), torch.tensor([3.0, 1.0, 2.0]))
    each = torch.tensor([[1.0, 0.0]] * 3 + [[3.0, 4.0]] * 3)
    torch.testing.assert_close(
        pool_nodes(embeddings, members, graphs=2), pool_nodes(each, _members(0, 0, 0, 0, 1, 1), graphs=2)
    )


def _members(*graph_ids):
    return whole_graphs(torch.zeros((2, 0), dtype=torch.int64), torch.tensor(graph_ids))[1]


def _soft(*values):
    return math.log1p(sum(math.exp(8.0 * value) for value in values)) / 8.0


def test_costs_add_up_in_the_soft_maximum():
    # Logarithms of costs, times the network's own scale: what is read out is the logarithm of their sum.
    costs = torch.tensor([[3.0], [500.0], [40.0]])
    pooled = pool_nodes(torch.log(costs) / 8.0, _members(0, 0, 0), graphs=1)
    assert math.exp(8.0 * pooled[0, 1].item()) == pytest.approx(1.0 + 543.0, rel=1e-4)


def test_gradients_of_the_soft_maximum_are_those_of_its_formula():
    embeddings = torch.tensor([[1.0], [1.5], [0.2]], requires_grad=True)
    pool_nodes(embeddings, _members(0, 0, 0), graphs=1)[0, 1].backward()
    weights = torch.exp(8.0 * embeddings.detach())
    torch.testing.assert_close(embeddings.grad, weights / (1.0 + weights.sum()))


def test_pooling_of_half_precision_does_not_overflow():
    pooled = pool_nodes(torch.full((4, 1), 60_000.0, dtype=torch.float16), _members(0, 0, 0, 0), graphs=1)
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled, torch.tensor([[60_000.0, 60_000.0 + math.log(4.0) / 8.0]]), rtol=1e-3, atol=0.0)


def test_gradients_are_those_of_the_formulas():
    torch.manual_seed(0)
    members = Members(
        torch.tensor([0, 0, 0, 2, 2]), torch.tensor([0, 1, 3, 1, 2]), torch.tensor([1.0, 3.0, 2.0, 1.0, 5.0])
    )
    embeddings = torch.rand(4, 3, requires_grad=True)
    told = torch.rand(3, 6)
    (pool_nodes(embeddings, members, graphs=3) * told).sum().backward()
    again = embeddings.detach().clone().requires_grad_()
    expected = []
    for graph in range(3):
        own = members.graph_ids == graph
        values, counts = again[members.rows[own]], members.counts[own][:, None]
        mean = (counts * values).sum(dim=0) / counts.sum().clamp(min=1.0)
        expected.append(torch.cat([mean, (1.0 + (counts * torch.exp(8.0 * values)).sum(dim=0)).log() / 8.0]))
    (torch.stack(expected) * told).sum().backward()
    torch.testing.assert_close(embeddings.grad, again.grad)


def test_parts_of_a_batch_are_pooled_as_the_whole(monkeypatch):
    torch.manual_seed(0)
    members = _members(0, 0, 0, 1, 3, 3, 3, 3, 3, 4)
    given = torch.rand(10, 4)

    def pooled():
        embeddings = given.clone().requires_grad_()
        result = pool_nodes(embeddings, members, graphs=6)
        result.square().sum().backward()
        return result.detach(), embeddings.grad

    whole = pooled()
    monkeypatch.setattr(pooling, "_MEMBERS_AT_ONCE", 4)
    assert len(pooling._parts(members.graph_ids, 6)) == 3  # graphs 0 to 2, 3, 4 and 5
    for part, expected in zip(pooled(), whole, strict=True):
        torch.testing.assert_close(part, expected)


def test_no_graphs():
    nothing = torch.zeros(0, dtype=torch.int64)
    embeddings = torch.ones(3, 4, requires_grad=True)
    pooled = pool_nodes(embeddings, Members(nothing, nothing, torch.zeros(0)), graphs=0)
    assert pooled.shape == (0, 8)
    pooled.sum().backward()
    assert embeddings.grad.tolist() == [[0.0] * 4] * 3


def test_a_gradient_in_float16_is_added_up_in_float32():
    """Of 3,000 gradients of 0.01 float16 would round each to a multiple of 1/64 once the sum is 16."""
    count = 3000
    members = Members(torch.arange(count), torch.zeros(count, dtype=torch.int64), torch.ones(count))
    embeddings = torch.full((1, 1), 0.5, dtype=torch.float16, requires_grad=True)
    pooled = pool_nodes(embeddings, members, graphs=count)
    (0.01 * pooled[:, :1]).sum().backward()
    assert embeddings.grad.item() == pytest.approx(30.0, rel=1e-3)
