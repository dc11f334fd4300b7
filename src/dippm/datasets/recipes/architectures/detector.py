"""What runs on the GPU in a one-stage detector: ResNet, feature pyramid (Lin et al. 2017), heads (RetinaNet).

Decoding boxes and suppressing doubles depend on the data and are left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dippm.datasets.recipes.architectures.timm_classes import build_resnet

__all__ = ["PyramidDetector"]

_BOX = 4


class PyramidDetector(nn.Module):
    """ResNet with a feature pyramid and, where asked for, heads that all levels share.

    Args:
        block: ``"basic"`` or ``"bottleneck"``.
        layers: Blocks of each stage of the ResNet.
        channels: Its channels.
        pyramid: Channels of the pyramid.
        head_layers: 3x3 convolutions in each head; 0 for the pyramid alone.
        anchors: Boxes per position.
        classes: Classes per box.
    """

    def __init__(
        self,
        *,
        block: str,
        layers: tuple[int, ...],
        channels: tuple[int, ...],
        pyramid: int,
        head_layers: int,
        anchors: int,
        classes: int,
    ) -> None:
        super().__init__()
        resnet: Any = build_resnet(block=block, layers=layers, channels=channels)
        self.stem = nn.Sequential(resnet.conv1, resnet.bn1, resnet.act1, resnet.maxpool)
        self.stages = nn.ModuleList([resnet.layer1, resnet.layer2, resnet.layer3, resnet.layer4])
        expansion = 1 if block == "basic" else 4
        self.lateral = nn.ModuleList(nn.Conv2d(width * expansion, pyramid, 1) for width in channels[1:])
        self.smooth = nn.ModuleList(nn.Conv2d(pyramid, pyramid, 3, padding=1) for _ in channels[1:])
        self.coarser = nn.Conv2d(pyramid, pyramid, 3, stride=2, padding=1)
        self.heads = nn.ModuleList()
        if head_layers:
            self.heads.append(_head(pyramid, head_layers, anchors * classes))
            self.heads.append(_head(pyramid, head_layers, anchors * _BOX))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Maps of each level of the pyramid, finest first: features, or class logits and then box offsets."""
        x = self.stem(x)
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        levels = [lateral(found) for lateral, found in zip(self.lateral, maps[1:], strict=True)]
        for fine in range(len(levels) - 2, -1, -1):
            above = functional.interpolate(levels[fine + 1], size=levels[fine].shape[-2:], mode="nearest")
            levels[fine] = levels[fine] + above
        levels = [smooth(level) for smooth, level in zip(self.smooth, levels, strict=True)]
        levels.append(self.coarser(levels[-1]))
        return [head(level) for head in self.heads for level in levels] if self.heads else levels


def _head(channels: int, layers: int, outputs: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(inplace=True)]
    return nn.Sequential(*parts, nn.Conv2d(channels, outputs, 3, padding=1))
