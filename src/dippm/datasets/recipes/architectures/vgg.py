"""VGG with fully connected layers onto the whole last map, so that its weights follow the size of the image."""

from __future__ import annotations

import torch
from torch import nn

from dippm.datasets.recipes.architectures.convolutions import classifier, conv_relu, flat_features

__all__ = ["VGG"]


class VGG(nn.Module):
    """VGG for images of any size from 32 pixels.

    Args:
        convolutions: Number of 3x3 convolutions in each of the five stages; (1, 1, 2, 2, 2) is VGG-11.
        in_chans: Channels of the image.
        height: Its height.
        width: Its width.
        scale: Factor on all channels.
    """

    def __init__(
        self, *, convolutions: tuple[int, ...], in_chans: int, height: int, width: int, scale: float = 1.0
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = in_chans
        for stage, count in enumerate(convolutions):
            outputs = max(1, round(min(512, 64 * 2**stage) * scale))
            for _ in range(count):
                layers.append(conv_relu(channels, outputs, 3, padding=1))
                channels = outputs
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        hidden = max(1, round(4096 * scale))
        features = flat_features(self.features, in_chans, height, width)
        self.classifier = classifier(features, (hidden, hidden), 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of a thousand classes."""
        result: torch.Tensor = self.classifier(self.features(x))
        return result
