"""LeNet as TensorFlow-Slim had it for digits: two 5x5 convolutions, two poolings, two fully connected layers."""

from __future__ import annotations

import torch
from torch import nn

from dippm.datasets.recipes.architectures.convolutions import classifier, conv_relu, flat_features

__all__ = ["LeNet"]


class LeNet(nn.Module):
    """LeNet for images of any size.

    Args:
        in_chans: Channels of the image.
        height: Its height.
        width: Its width.
        scale: Factor on all channels.
    """

    def __init__(self, *, in_chans: int, height: int, width: int, scale: float = 1.0) -> None:
        super().__init__()
        first, second, hidden = (max(1, round(size * scale)) for size in (32, 64, 1024))
        self.features = nn.Sequential(
            conv_relu(in_chans, first, 5, padding=2),
            nn.MaxPool2d(2, 2),
            conv_relu(first, second, 5, padding=2),
            nn.MaxPool2d(2, 2),
        )
        self.classifier = classifier(flat_features(self.features, in_chans, height, width), (hidden,), 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of ten classes."""
        result: torch.Tensor = self.classifier(self.features(x))
        return result
