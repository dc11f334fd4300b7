"""A space of MobileNet-like image classifiers: five stages of inverted residual blocks and the image size.

Every stage chooses its depth, width, expansion, kernel and whether its blocks squeeze and excite: 2.2e13 networks. The
layout of the blocks is that of MobileNetV3 (Howard et al., 2019, arXiv:1905.02244), the plain PyTorch here our own.

    dippm explore --space examples/spaces/mobilenet_cells.py --objective latency,memory,score:max --batch 8 --device T4
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

CLASSES = 1000
STEM, HEAD = 16, 1280
# Widths that a stage may have, and the stride of its first block.
STAGES = (
    (range(16, 33, 8), 2),
    (range(24, 57, 8), 2),
    (range(48, 113, 16), 2),
    (range(80, 161, 16), 1),
    (range(128, 257, 32), 2),
)

CHOICES: dict[str, object] = {"image": range(128, 257, 32)}
for number, (widths, _) in enumerate(STAGES, start=1):
    CHOICES |= {
        f"depth{number}": range(1, 5),
        f"width{number}": widths,
        f"expansion{number}": [3, 4, 6],
        f"kernel{number}": [3, 5, 7],
        f"squeeze{number}": [False, True],
    }


def model(choices: Mapping[str, Any]) -> nn.Module:
    """The network; dippm calls this under PyTorch's meta device, where weights take no memory."""
    layers: list[nn.Module] = [_convolve(3, STEM, kernel=3, stride=2)]
    width = STEM
    for number, (_, stride) in enumerate(STAGES, start=1):
        for place in range(choices[f"depth{number}"]):
            layers.append(
                InvertedResidual(
                    width,
                    choices[f"width{number}"],
                    expansion=choices[f"expansion{number}"],
                    kernel=choices[f"kernel{number}"],
                    stride=stride if place == 0 else 1,
                    has_squeeze=choices[f"squeeze{number}"],
                )
            )
            width = choices[f"width{number}"]
    layers += [_convolve(width, HEAD), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(HEAD, CLASSES)]
    return nn.Sequential(*layers)


def inputs(choices: Mapping[str, Any]) -> tuple[int, ...]:
    """Shape of one image."""
    return (3, choices["image"], choices["image"])


def score(_choices: Mapping[str, Any], prediction: Any) -> float:
    """Capacity, to be maximised: the decimal logarithm of the geometric mean of parameters and MACs.

    It is no accuracy. Parameters and FLOPs are simple proxies that data-free scores of architectures are compared with;
    put what you know of your own task here, such as a table of trained networks.
    """
    return math.log10(prediction.model.parameters * prediction.macs / prediction.batch) / 2


class InvertedResidual(nn.Module):
    """Expand, filter each channel by itself, perhaps weigh the channels, project; the input is added where it fits."""

    def __init__(self, width: int, out: int, *, expansion: int, kernel: int, stride: int, has_squeeze: bool) -> None:
        super().__init__()
        hidden = width * expansion
        layers: list[nn.Module] = [
            _convolve(width, hidden),
            _convolve(hidden, hidden, kernel=kernel, stride=stride, groups=hidden),
        ]
        if has_squeeze:
            layers.append(SqueezeExcite(hidden))
        layers += [nn.Conv2d(hidden, out, 1, bias=False), nn.BatchNorm2d(out)]
        self.layers = nn.Sequential(*layers)
        self.is_residual = stride == 1 and width == out

    def forward(self, images: Tensor) -> Tensor:
        """Run the block."""
        result: Tensor = self.layers(images)
        return images + result if self.is_residual else result


class SqueezeExcite(nn.Module):
    """Weights for the channels, computed from their means."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, width // 4, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(width // 4, width, 1),
            nn.Hardsigmoid(inplace=True),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Weigh the channels."""
        weights: Tensor = self.layers(images)
        return images * weights


def _convolve(width: int, out: int, *, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(width, out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
        nn.Hardswish(inplace=True),
    )
