"""Readout and fully connected blocks."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from dippm.models.blocks import FullyConnectedBlocks, pool_nodes  # noqa: E402


def test_pooling_by_hand():
    embeddings = torch.tensor([[1.0, 0.0], [3.0, 4.0], [5.0, 6.0]])
    pooled = pool_nodes(embeddings, torch.tensor([0, 0, 2]), graphs=3)
    expected = [
        [2.0, 2.0, math.log(5.0), math.log(5.0)],
        [0.0, 0.0, 0.0, 0.0],
        [5.0, 6.0, math.log(6.0), math.log(7.0)],
    ]
    torch.testing.assert_close(pooled, torch.tensor(expected))


def test_pooling_of_half_precision_does_not_overflow():
    pooled = pool_nodes(torch.full((4, 1), 60_000.0, dtype=torch.float16), torch.zeros(4, dtype=torch.int64), graphs=1)
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled, torch.tensor([[60_000.0, math.log1p(240_000.0)]]), rtol=1e-3, atol=0.0)


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
    assert kept == pytest.approx(2.0)
    assert dropped == pytest.approx(2.0, rel=0.05)
    assert dropped != kept
