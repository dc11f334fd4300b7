from __future__ import annotations

import pytest
import torch
from torch import nn

from dippm.training.running_mean import follow


def _networks(start: float) -> tuple[nn.Linear, nn.Linear]:
    mean, network = nn.Linear(2, 1), nn.Linear(2, 1)
    for own, value in ((mean, 0.0), (network, start)):
        for values in own.parameters():
            nn.init.constant_(values, value)
    return mean, network


def test_after_many_steps_so_much_is_kept() -> None:
    mean, network = _networks(1.0)
    follow(mean, network, memory=0.9, step=10_000)
    assert [float(values.flatten()[0].detach()) for values in mean.parameters()] == pytest.approx([0.1, 0.1])
    assert torch.all(network.weight == 1.0)


def test_the_first_steps_are_forgotten_sooner() -> None:
    mean, network = _networks(1.0)
    follow(mean, network, memory=0.9, step=1)
    assert float(mean.bias.detach()) == pytest.approx(10 / 11)
