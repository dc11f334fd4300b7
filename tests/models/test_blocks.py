"""Fully connected blocks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from dippm.models.blocks import FullyConnectedBlocks  # noqa: E402


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
