from __future__ import annotations

import torch

from dippm.features.physical import LARGEST_CORRECTION
from dippm.models.convolution import ConvolutionNetwork


def test_a_new_network_corrects_nothing() -> None:
    assert ConvolutionNetwork(inputs=5, width=8)(torch.randn(3, 5)).tolist() == [0.0, 0.0, 0.0]


def test_corrections_are_bounded() -> None:
    network = ConvolutionNetwork(inputs=5, width=8)
    torch.nn.init.constant_(network.output.bias, 1e3)
    assert torch.allclose(network(torch.randn(2, 5)), torch.full((2,), LARGEST_CORRECTION))


def test_each_convolution_is_corrected_by_itself() -> None:
    torch.manual_seed(1)
    network = ConvolutionNetwork(inputs=5, width=8)
    torch.nn.init.normal_(network.output.weight)
    features = torch.randn(4, 5)
    together = network(features)
    assert torch.allclose(together, torch.cat([network(row[None]) for row in features]))
    assert len(set(together.tolist())) == 4


def test_layers_add_to_what_they_read() -> None:
    network = ConvolutionNetwork(inputs=3, width=3, layers=2)
    with torch.no_grad():
        for layer in (network.input, *network.own):
            layer.weight.copy_(torch.eye(3))
            layer.bias.zero_()
        network.output.weight.fill_(0.01)
    # The first hands on what is positive, each of the two others adds it once more: four times in all.
    assert torch.allclose(network(torch.tensor([[1.0, 2.0, -5.0]])), torch.tensor([0.12]), atol=1e-3)
