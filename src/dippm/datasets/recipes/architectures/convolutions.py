"""Blocks that several networks share."""

from __future__ import annotations

from torch import nn

from dippm.datasets.recipes.spaces.shapes import size_after

__all__ = ["classifier", "conv_norm_relu", "conv_relu", "flat_features"]


def conv_relu(inputs: int, outputs: int, kernel: int, *, stride: int = 1, padding: int = 0) -> nn.Sequential:
    """Convolution with bias, and ReLU."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding), nn.ReLU(inplace=True))


def conv_norm_relu(
    inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1, dilation: int = 1
) -> nn.Sequential:
    """Convolution that keeps the size (divided by the stride), batch normalisation, and ReLU."""
    padding = dilation * (kernel - 1) // 2
    return nn.Sequential(
        nn.Conv2d(
            inputs, outputs, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups, bias=False
        ),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def classifier(features: int, hidden: tuple[int, ...], classes: int) -> nn.Sequential:
    """Flatten, fully connected layers with ReLU and dropout, and a last one onto the classes."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width in hidden:
        layers += [nn.Linear(features, width), nn.ReLU(inplace=True), nn.Dropout(0.5)]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, classes))


def flat_features(features: nn.Module, channels: int, height: int, width: int) -> int:
    """Number of features that convolutions and poolings in a row leave of an image, in all."""
    for layer in features.modules():
        if isinstance(layer, nn.Conv2d):
            kernel, stride, padding = layer.kernel_size[0], layer.stride[0], int(layer.padding[0])
            channels = layer.out_channels
        elif isinstance(layer, nn.MaxPool2d):
            kernel, stride, padding = (int(str(size)) for size in (layer.kernel_size, layer.stride, layer.padding))
        else:
            continue
        height = size_after(height, kernel, stride=stride, padding=padding)
        width = size_after(width, kernel, stride=stride, padding=padding)
    return channels * height * width
