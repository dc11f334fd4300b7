"""Networks of searched cells, stacked as NASNet (Zoph et al. 2018) and DARTS (Liu et al. 2019) stack theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from dippm.datasets.recipes.architectures.convolutions import classifier, conv_norm_relu

__all__ = ["CellNetwork"]


def _separable(channels: int, kernel: int, stride: int) -> nn.Module:
    return nn.Sequential(
        conv_norm_relu(channels, channels, kernel, stride=stride, groups=channels),
        conv_norm_relu(channels, channels, 1),
        conv_norm_relu(channels, channels, kernel, groups=channels),
        conv_norm_relu(channels, channels, 1),
    )


def _dilated(channels: int, kernel: int, stride: int) -> nn.Module:
    return nn.Sequential(
        conv_norm_relu(channels, channels, kernel, stride=stride, groups=channels, dilation=2),
        conv_norm_relu(channels, channels, 1),
    )


def _skip(channels: int, stride: int) -> nn.Module:
    return nn.Identity() if stride == 1 else conv_norm_relu(channels, channels, 1, stride=stride)


_OPERATIONS: Mapping[str, Callable[[int, int], nn.Module]] = {
    "conv1": lambda channels, stride: conv_norm_relu(channels, channels, 1, stride=stride),
    "conv3": lambda channels, stride: conv_norm_relu(channels, channels, 3, stride=stride),
    "conv5": lambda channels, stride: conv_norm_relu(channels, channels, 5, stride=stride),
    "separable3": lambda channels, stride: _separable(channels, 3, stride),
    "separable5": lambda channels, stride: _separable(channels, 5, stride),
    "dilated3": lambda channels, stride: _dilated(channels, 3, stride),
    "dilated5": lambda channels, stride: _dilated(channels, 5, stride),
    "maxpool": lambda _, stride: nn.MaxPool2d(3, stride, padding=1),
    "avgpool": lambda _, stride: nn.AvgPool2d(3, stride, padding=1),
    "skip": _skip,
}


class _Cell(nn.Module):
    """A small graph: each node is the sum of operations on earlier states; the cell gives all nodes side by side."""

    def __init__(
        self,
        plan: tuple[str, ...],
        *,
        before: int,
        inputs: int,
        channels: int,
        is_reduction: bool,
        after_reduction: bool,
    ) -> None:
        super().__init__()
        # The state of two cells ago is twice as high and wide where the cell between was a reduction.
        self.older = conv_norm_relu(before, channels, 1, stride=2 if after_reduction else 1)
        self.newer = conv_norm_relu(inputs, channels, 1)
        self.sources: list[list[int]] = []
        self.nodes = nn.ModuleList()
        for node in plan:
            operations = nn.ModuleList()
            sources = []
            for edge in node.split("+"):
                source, _, operation = edge.partition(":")
                sources.append(int(source))
                # States 0 and 1 are the cell's inputs: a reduction halves them, and all that follows has the half.
                operations.append(_OPERATIONS[operation](channels, 2 if is_reduction and int(source) < 2 else 1))
            self.sources.append(sources)
            self.nodes.append(operations)
        self.outputs = channels * len(plan)

    def forward(self, older: torch.Tensor, newer: torch.Tensor) -> torch.Tensor:
        states = [self.older(older), self.newer(newer)]
        for operations, sources in zip(self.nodes, self.sources, strict=True):
            assert isinstance(operations, nn.ModuleList)  # noqa: S101 - for the type checker
            total = operations[0](states[sources[0]])
            for operation, source in zip(operations[1:], sources[1:], strict=True):
                total = total + operation(states[source])
            states.append(total)
        return torch.cat(states[2:], 1)


class CellNetwork(nn.Module):
    """Stages of normal cells with a reduction cell, which doubles the channels, between them.

    Args:
        normal: One entry per node of the normal cell: edges joined by ``+``, each ``state:operation``, where states
            0 and 1 are the outputs of the two cells before and state n + 2 is node n.
        reduction: The same for the reduction cell.
        stages: Number of stages.
        cells: Normal cells per stage.
        channels: Channels of a node in the first stage.
        dense: Fully connected layers before the last.
        in_chans: Channels of the image.
        classes: Number of classes.
    """

    def __init__(
        self,
        *,
        normal: tuple[str, ...],
        reduction: tuple[str, ...],
        stages: int,
        cells: int,
        channels: int,
        dense: tuple[int, ...],
        in_chans: int,
        classes: int,
    ) -> None:
        super().__init__()
        self.stem = conv_norm_relu(in_chans, 2 * channels, 3)
        before = inputs = 2 * channels
        after_reduction = False
        self.cells = nn.ModuleList()
        for stage in range(stages):
            for place in range(cells + (stage > 0)):
                is_reduction = stage > 0 and place == 0
                cell = _Cell(
                    reduction if is_reduction else normal,
                    before=before,
                    inputs=inputs,
                    channels=channels * 2**stage,
                    is_reduction=is_reduction,
                    after_reduction=after_reduction,
                )
                self.cells.append(cell)
                before, inputs, after_reduction = inputs, cell.outputs, is_reduction
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = classifier(inputs, dense, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the classes."""
        older = newer = self.stem(x)
        for cell in self.cells:
            older, newer = newer, cell(older, newer)
        result: torch.Tensor = self.classifier(self.pool(newer))
        return result
