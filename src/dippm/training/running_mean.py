"""A running mean of a network's weights, which is what is kept of a training."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["follow"]

# A mean of the first steps is no mean of what comes out: it forgets them sooner.
_SOONER = 10


def follow(mean: nn.Module, network: nn.Module, *, memory: float, step: int) -> None:
    """Move the mean towards the weights as they are.

    Args:
        mean: A copy of the network.
        network: The network that is trained.
        memory: Share of the mean that is kept in a step, after many of them.
        step: How many steps were taken, this one among them.
    """
    memory = min(memory, step / (step + _SOONER))
    with torch.no_grad():
        for kept, current in zip(mean.parameters(), network.parameters(), strict=True):
            kept.lerp_(current, 1.0 - memory)
