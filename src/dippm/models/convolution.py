"""The network of convolutions: a correction of the physical time of each, from what it is alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dippm.features.physical import LARGEST_CORRECTION

__all__ = ["ConvolutionNetwork"]


class ConvolutionNetwork(nn.Module):
    """A correction of the kernel time of each convolution, which others are made on top of.

    Libraries choose among hundreds of kernels for convolutions, by rules that step from size to size, and what stands
    beside one tells nothing of that: so it is a wide network without messages, of dense layers that add to what they
    read, and it learns from convolutions that were measured by themselves as well as from traced calls.

    Args:
        inputs: Width of the features.
        width: Width of the layers.
        layers: Layers behind the first one.
    """

    def __init__(self, *, inputs: int, width: int = 128, layers: int = 3) -> None:
        super().__init__()
        self.input = nn.Linear(inputs, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.output = nn.Linear(width, 1)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Logarithm of the correction of each convolution.

        Shapes:
            features: [N, inputs]; result: [N].
        """
        values = torch.relu(self.input(features))
        for own in self.own:
            values = values + torch.relu(own(values))
        result: Tensor = LARGEST_CORRECTION * torch.tanh(self.output(values) / LARGEST_CORRECTION)
        return result[:, 0]
