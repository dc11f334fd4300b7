import math

import pytest
import torch

from dippm.features.physical import LARGEST_CORRECTION
from dippm.models.additive import AdditiveNetwork, mean_messages


def _messages(*triples: tuple[int, int, float]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    source, target, weight = zip(*triples, strict=True)
    return torch.tensor(source), torch.tensor(target), torch.tensor(weight)


def test_messages_are_means_and_zero_without_neighbours() -> None:
    values = torch.tensor([[2.0], [4.0], [10.0]])
    heard = mean_messages(values, _messages((0, 2, 0.5), (1, 2, 0.5), (2, 0, 1.0)))
    assert heard.tolist() == [[10.0], [0.0], [3.0]]


def test_a_new_network_corrects_nothing() -> None:
    network = AdditiveNetwork(inputs=5, width=8)
    messages = _messages((0, 1, 1.0))
    assert not network(torch.randn(3, 5), messages, messages).any()


def test_corrections_are_bounded() -> None:
    network = AdditiveNetwork(inputs=5, width=8)
    torch.nn.init.constant_(network.output.bias, 1e3)
    messages = _messages((0, 1, 1.0))
    result = network(torch.randn(3, 5), messages, messages)
    assert result.abs().max().item() == pytest.approx(LARGEST_CORRECTION)
    assert math.exp(LARGEST_CORRECTION) < 21


def test_an_operator_hears_two_steps_far_and_no_further() -> None:
    torch.manual_seed(0)
    network = AdditiveNetwork(inputs=4, width=16)
    torch.nn.init.normal_(network.output.weight)
    forward = _messages((0, 1, 1.0), (1, 2, 1.0), (2, 3, 1.0))
    backward = _messages((1, 0, 1.0), (2, 1, 1.0), (3, 2, 1.0))
    features = torch.randn(4, 4)
    changed = features.clone()
    changed[0] += 1.0
    before, after = network(features, forward, backward), network(changed, forward, backward)
    differs = (before != after).any(dim=1)
    assert differs.tolist() == [True, True, True, False]
