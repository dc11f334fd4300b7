"""OverFeat, the fast network of Sermanet et al. (2013), as TensorFlow-Slim had it."""

from __future__ import annotations

import torch
from torch import nn

from dippm.datasets.recipes.architectures.convolutions import classifier, conv_relu, flat_features

__all__ = ["OverFeat"]


class OverFeat(nn.Module):
    """OverFeat for images of any size from 75 pixels.

    Args:
        in_chans: Channels of the image.
        height: Its height.
        width: Its width.
        scale: Factor on all channels.
    """

    def __init__(self, *, in_chans: int, height: int, width: int, scale: float = 1.0) -> None:
        super().__init__()
        c1, c2, c3, c4, h1, h2 = (max(1, round(size * scale)) for size in (64, 256, 512, 1024, 3072, 4096))
        self.features = nn.Sequential(
            conv_relu(in_chans, c1, 11, stride=4),
            nn.MaxPool2d(2, 2),
            conv_relu(c1, c2, 5),
            nn.MaxPool2d(2, 2),
            conv_relu(c2, c3, 3, padding=1),
            conv_relu(c3, c4, 3, padding=1),
            conv_relu(c4, c4, 3, padding=1),
            nn.MaxPool2d(2, 2),
        )
        features = flat_features(self.features, in_chans, height, width)
        self.classifier = classifier(features, (h1, h2), 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of a thousand classes."""
        result: torch.Tensor = self.classifier(self.features(x))
        return result
