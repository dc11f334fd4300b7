"""U-Net (Ronneberger et al. 2015), padded so that the map keeps the size of the image."""

from __future__ import annotations

import torch
from torch import nn

from dippm.datasets.recipes.architectures.convolutions import conv_norm_relu

__all__ = ["UNet"]


class UNet(nn.Module):
    """U-Net with batch normalisation.

    Args:
        channels: Channels of the first level; each level below has twice as many.
        levels: Number of levels; the image's sides must be divisible by 2 to the power of ``levels - 1``.
        convolutions: 3x3 convolutions per level, on the way down and on the way up.
        transposed: Whether transposed convolutions go up, else bilinear interpolation and a 1x1 convolution.
        in_chans: Channels of the image.
        classes: Channels of the result.
    """

    def __init__(
        self, *, channels: int, levels: int, convolutions: int, transposed: bool, in_chans: int, classes: int
    ) -> None:
        super().__init__()
        widths = [channels * 2**level for level in range(levels)]
        self.down = nn.ModuleList(
            _stack(inputs, width, convolutions) for inputs, width in zip((in_chans, *widths), widths, strict=False)
        )
        self.pool = nn.MaxPool2d(2, 2)
        self.rise = nn.ModuleList(
            nn.ConvTranspose2d(below, width, 2, stride=2)
            if transposed
            else nn.Sequential(
                nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), nn.Conv2d(below, width, 1)
            )
            for width, below in zip(widths[-2::-1], widths[:0:-1], strict=True)
        )
        self.up = nn.ModuleList(_stack(2 * width, width, convolutions) for width in widths[-2::-1])
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One logit per class and pixel."""
        kept = []
        for level, stack in enumerate(self.down):
            x = stack(self.pool(x) if level else x)
            kept.append(x)
        kept.pop()
        for rise, stack in zip(self.rise, self.up, strict=True):
            x = stack(torch.cat([kept.pop(), rise(x)], 1))
        result: torch.Tensor = self.head(x)
        return result


def _stack(inputs: int, outputs: int, count: int) -> nn.Sequential:
    return nn.Sequential(
        conv_norm_relu(inputs, outputs, 3), *(conv_norm_relu(outputs, outputs, 3) for _ in range(count - 1))
    )
