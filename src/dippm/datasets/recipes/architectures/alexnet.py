"""AlexNet in the one-tower form of Krizhevsky's "One weird trick", as TensorFlow-Slim had it."""

from __future__ import annotations

import torch
from torch import nn

from dippm.datasets.recipes.architectures.convolutions import classifier, conv_relu, flat_features

__all__ = ["AlexNet"]


class AlexNet(nn.Module):
    """AlexNet for images of any size from 67 pixels.

    Args:
        in_chans: Channels of the image.
        height: Its height.
        width: Its width.
        scale: Factor on all channels.
    """

    def __init__(self, *, in_chans: int, height: int, width: int, scale: float = 1.0) -> None:
        super().__init__()
        c1, c2, c3, c5, hidden = (max(1, round(size * scale)) for size in (64, 192, 384, 256, 4096))
        self.features = nn.Sequential(
            conv_relu(in_chans, c1, 11, stride=4),
            nn.MaxPool2d(3, 2),
            conv_relu(c1, c2, 5, padding=2),
            nn.MaxPool2d(3, 2),
            conv_relu(c2, c3, 3, padding=1),
            conv_relu(c3, c3, 3, padding=1),
            conv_relu(c3, c5, 3, padding=1),
            nn.MaxPool2d(3, 2),
        )
        features = flat_features(self.features, in_chans, height, width)
        self.classifier = classifier(features, (hidden, hidden), 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of a thousand classes."""
        result: torch.Tensor = self.classifier(self.features(x))
        return result
