"""Inception-v1 (GoogLeNet, Szegedy et al. 2015, Table 1), batch-normalised, without auxiliary heads."""

from __future__ import annotations

import torch
from torch import nn

from dippm.datasets.recipes.architectures.convolutions import conv_norm_relu

__all__ = ["InceptionV1"]

# Outputs of the 1x1, of the two convolutions before and in the 3x3 and 5x5 branches, and behind the pooling.
_STAGES = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)  # fmt: skip


class _Block(nn.Module):
    def __init__(self, inputs: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        point, before3, after3, before5, after5, pooled = sizes
        self.branch1 = conv_norm_relu(inputs, point, 1)
        self.branch2 = nn.Sequential(conv_norm_relu(inputs, before3, 1), conv_norm_relu(before3, after3, 3))
        self.branch3 = nn.Sequential(conv_norm_relu(inputs, before5, 1), conv_norm_relu(before5, after5, 5))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, padding=1), conv_norm_relu(inputs, pooled, 1))
        self.outputs = point + after3 + after5 + pooled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class InceptionV1(nn.Module):
    """Inception-v1 for images of any size.

    Args:
        in_chans: Channels of the image.
        scale: Factor on all channels.
    """

    def __init__(self, *, in_chans: int, scale: float = 1.0) -> None:
        super().__init__()

        def sized(channels: int) -> int:
            return max(1, round(channels * scale))

        channels = sized(192)
        layers: list[nn.Module] = [
            conv_norm_relu(in_chans, sized(64), 7, stride=2),
            nn.MaxPool2d(3, 2, padding=1),
            conv_norm_relu(sized(64), sized(64), 1),
            conv_norm_relu(sized(64), channels, 3),
        ]
        for stage in _STAGES:
            layers.append(nn.MaxPool2d(3, 2, padding=1))
            for sizes in stage:
                block = _Block(channels, tuple(sized(size) for size in sizes))
                layers.append(block)
                channels = block.outputs
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(channels, 1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of a thousand classes."""
        result: torch.Tensor = self.head(self.features(x))
        return result
