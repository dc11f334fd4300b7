"""A plain chain of convolutions and poolings with fully connected layers behind."""

from __future__ import annotations

import torch
from torch import nn

from dippm.datasets.recipes.architectures.convolutions import classifier, conv_relu, flat_features

__all__ = ["Chain"]


class Chain(nn.Module):
    """Layers in a row.

    Args:
        layers: ``conv:CHANNELS:KERNEL:STRIDE`` (padded by half the kernel, with ReLU) or ``pool:SIZE`` each.
        dense: Fully connected layers before the last.
        in_chans: Channels of the image.
        height: Its height.
        width: Its width.
        classes: Number of classes.
    """

    def __init__(
        self,
        *,
        layers: tuple[str, ...],
        dense: tuple[int, ...],
        in_chans: int,
        height: int,
        width: int,
        classes: int,
    ) -> None:
        super().__init__()
        modules: list[nn.Module] = []
        channels = in_chans
        for layer in layers:
            kind, *numbers = layer.split(":")
            if kind == "conv":
                outputs, kernel, stride = map(int, numbers)
                modules.append(conv_relu(channels, outputs, kernel, stride=stride, padding=kernel // 2))
                channels = outputs
            elif kind == "pool":
                modules.append(nn.MaxPool2d(int(numbers[0]), int(numbers[0])))
            else:
                raise ValueError(f"a layer must be conv:... or pool:..., got {layer}")
        self.features = nn.Sequential(*modules)
        self.classifier = classifier(flat_features(self.features, in_chans, height, width), dense, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the classes."""
        result: torch.Tensor = self.classifier(self.features(x))
        return result
