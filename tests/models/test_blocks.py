"""Readout and fully connected blocks."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from dippm.models.blocks import FullyConnectedBlocks, pool_nodes  # noqa: E402
from dippm.models.message_rounds import Members, whole_graphs  # noqa: E402


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


def test_three_blocks_and_an_output():
    torch.manual_seed(0)
    blocks = FullyConnectedBlocks(inputs=6, hidden=5, dropout=0.5, outputs=2).eval()
    assert [tuple(layer.weight.shape) for layer in blocks.layers] == [(5, 6), (5, 5), (5, 5)]
    values = given = torch.randn(4, 6)
    for layer in blocks.layers:
        values = (values @ layer.weight.T + layer.bias).clamp(min=0)
    torch.testing.assert_close(blocks(given), values @ blocks.output.weight.T + blocks.output.bias)


def test_dropout_of_the_blocks_keeps_the_mean():
    torch.manual_seed(0)
    blocks = FullyConnectedBlocks(inputs=3, hidden=4000, dropout=0.25, outputs=1)
    with torch.no_grad():
        for layer in blocks.layers:
            layer.weight.zero_()
            layer.bias.fill_(2.0)
        blocks.output.weight.fill_(1 / 4000)
        blocks.output.bias.zero_()
        kept, dropped = (float(blocks.train(is_training)(torch.ones(1, 3))) for is_training in (False, True))
    assert kept == pytest.approx(2.0, rel=1e-4)  # the order in which 4,000 numbers are added is the machine's
    assert dropped == pytest.approx(2.0, rel=0.05)
    assert dropped != kept
