"""Networks of NVIDIA's DeepLearningExamples that no library builds, written anew after their papers.

They are here for the published times in ``data/published/deep_learning_examples.csv`` alone, and only as exact as times
ask for: what follows from the data (the rare words of an adaptive softmax, a loss that picks boxes) is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from dippm.frontends.torch.torchvision_ops import import_torchvision_ops

__all__ = ["JASPER", "QUARTZNET", "AcousticModel", "NeuMf", "Ssd300", "TransformerXl", "UNet"]


class UNet(nn.Module):
    """nnU-Net of the task of brain tumours: four channels in, four classes out (Isensee et al., Nature Methods 2021).

    Six levels of two convolutions, each with instance norm and a leaky rectifier, strided instead of pooled.

    Args:
        dimensions: 2 or 3.

    Shapes:
        input: (batch, 4, *sizes), every size a multiple of 32; output the same.
    """

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        conv, rise, norm = {
            2: (nn.Conv2d, nn.ConvTranspose2d, nn.InstanceNorm2d),
            3: (nn.Conv3d, nn.ConvTranspose3d, nn.InstanceNorm3d),
        }[dimensions]

        def pair(incoming: int, outgoing: int, stride: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for width, step in ((incoming, stride), (outgoing, 1)):
                layers += [
                    conv(width, outgoing, 3, stride=step, padding=1, bias=False),
                    norm(outgoing, affine=True),
                    nn.LeakyReLU(0.01),
                ]
            return nn.Sequential(*layers)

        # A level has twice the filters of the one above it, up to a bound that the library behind the times sets.
        widths = [min(32 * 2**level, {2: 512, 3: 320}[dimensions]) for level in range(6)]
        self.down = nn.ModuleList(
            [pair(4, widths[0], 1), *(pair(above, below, 2) for above, below in pairwise(widths))]
        )
        levels = list(pairwise(widths))[::-1]
        self.rise = nn.ModuleList([rise(below, above, 2, stride=2) for above, below in levels])
        self.up = nn.ModuleList([pair(2 * above, above, 1) for above, _ in levels])
        self.classes = conv(widths[0], 4, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Scores of each place."""
        kept = []
        for level in self.down:
            image = level(image)
            kept.append(image)
        for rise, up, beside in zip(self.rise, self.up, kept[-2::-1], strict=True):
            image = up(torch.cat((rise(image), beside), dim=1))
        scores: Tensor = self.classes(image)
        return scores


class Ssd300(nn.Module):
    """SSD300 (Liu et al., ECCV 2016) on the first three stages of ResNet-50, the last of them without its stride.

    Shapes:
        input: (batch, 3, 300, 300); output: places (batch, 4, 8732) and classes (batch, 81, 8732).
    """

    _WIDTHS = (1024, 512, 512, 256, 256, 256)
    _BETWEEN = (256, 256, 128, 128, 128)
    _BOXES = (4, 6, 6, 6, 4, 4)
    _CLASSES = 81

    def __init__(self) -> None:
        super().__init__()
        import_torchvision_ops()
        from torchvision.models import resnet50

        backbone = resnet50(weights=None)
        self.backbone = nn.Sequential(*list(backbone.children())[:7])
        first = backbone.layer3[0]
        for layer in (first.conv2, first.downsample[0]):
            layer.stride = (1, 1)
        self.further = nn.ModuleList()
        for (incoming, outgoing), between in zip(pairwise(self._WIDTHS), self._BETWEEN, strict=True):
            is_strided = len(self.further) < 3
            last = nn.Conv2d(between, outgoing, 3, stride=1 + is_strided, padding=int(is_strided), bias=False)
            self.further.append(
                nn.Sequential(
                    nn.Conv2d(incoming, between, 1, bias=False),
                    nn.BatchNorm2d(between),
                    nn.ReLU(inplace=True),
                    last,
                    nn.BatchNorm2d(outgoing),
                    nn.ReLU(inplace=True),
                )
            )
        heads = list(zip(self._WIDTHS, self._BOXES, strict=True))
        self.places = nn.ModuleList([nn.Conv2d(width, 4 * boxes, 3, padding=1) for width, boxes in heads])
        self.classes = nn.ModuleList([nn.Conv2d(width, self._CLASSES * boxes, 3, padding=1) for width, boxes in heads])

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Places and classes of all boxes."""
        maps = [self.backbone(image)]
        for further in self.further:
            maps.append(further(maps[-1]))
        places = [head(each).flatten(2) for head, each in zip(self.places, maps, strict=True)]
        classes = [head(each).flatten(2) for head, each in zip(self.classes, maps, strict=True)]
        return (
            torch.cat([each.reshape(each.shape[0], 4, -1) for each in places], dim=2),
            torch.cat([each.reshape(each.shape[0], self._CLASSES, -1) for each in classes], dim=2),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AcousticBlock:
    """A block of convolutions along time.

    Args:
        width: Filters.
        kernel: Frames that one sees.
        repeats: Convolutions in the block.
        stride: Frames that the first one goes on by.
        dilation: Frames between those that one sees.
        is_residual: Whether its input is added to its output.
        is_separable: Whether each is a depthwise and a pointwise convolution.
        dropout: Share that is dropped behind each rectifier.
    """

    width: int
    kernel: int
    repeats: int = 5
    stride: int = 1
    dilation: int = 1
    is_residual: bool = True
    is_separable: bool = False
    dropout: float = 0.0


#: Jasper 10x5 (Li et al., Interspeech 2019, table 1).
JASPER = (
    AcousticBlock(width=256, kernel=11, repeats=1, stride=2, is_residual=False, dropout=0.2),
    *(AcousticBlock(width=256, kernel=11, dropout=0.2) for _ in range(2)),
    *(AcousticBlock(width=384, kernel=13, dropout=0.2) for _ in range(2)),
    *(AcousticBlock(width=512, kernel=17, dropout=0.2) for _ in range(2)),
    *(AcousticBlock(width=640, kernel=21, dropout=0.3) for _ in range(2)),
    *(AcousticBlock(width=768, kernel=25, dropout=0.3) for _ in range(2)),
    AcousticBlock(width=896, kernel=29, repeats=1, dilation=2, is_residual=False, dropout=0.4),
    AcousticBlock(width=1024, kernel=1, repeats=1, is_residual=False, dropout=0.4),
)

#: QuartzNet 15x5 (Kriman et al., ICASSP 2020, table 1).
QUARTZNET = (
    AcousticBlock(width=256, kernel=33, repeats=1, stride=2, is_residual=False, is_separable=True),
    *(AcousticBlock(width=256, kernel=33, is_separable=True) for _ in range(3)),
    *(AcousticBlock(width=256, kernel=39, is_separable=True) for _ in range(3)),
    *(AcousticBlock(width=512, kernel=51, is_separable=True) for _ in range(3)),
    *(AcousticBlock(width=512, kernel=63, is_separable=True) for _ in range(3)),
    *(AcousticBlock(width=512, kernel=75, is_separable=True) for _ in range(3)),
    AcousticBlock(width=512, kernel=87, repeats=1, dilation=2, is_residual=False, is_separable=True),
    AcousticBlock(width=1024, kernel=1, repeats=1, is_residual=False),
)


class _MaskedConv(nn.Conv1d):
    """A convolution along time that first sets what lies behind the end of each sample to zero."""

    def forward(self, sound: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        is_behind = torch.arange(sound.shape[2], device=sound.device) >= lengths[:, None]
        sound = sound.masked_fill(is_behind[:, None], 0)
        seen = self.dilation[0] * (self.kernel_size[0] - 1) + 1
        lengths = (lengths + 2 * int(self.padding[0]) - seen) // self.stride[0] + 1
        return super().forward(sound), lengths


class _Normed(nn.Module):
    """One convolution, or two where it is separable, and batch norm."""

    def __init__(self, incoming: int, block: AcousticBlock, *, stride: int = 1, is_beside: bool = False) -> None:
        super().__init__()
        kernel = 1 if is_beside else block.kernel
        groups = incoming if block.is_separable and not is_beside else 1
        first = _MaskedConv(
            incoming, block.width if groups == 1 else incoming, kernel, stride=stride,
            padding=kernel // 2 * block.dilation, dilation=block.dilation, groups=groups, bias=False,
        )  # fmt: skip
        self.convs = nn.ModuleList([first])
        if groups > 1:
            self.convs.append(_MaskedConv(incoming, block.width, 1, bias=False))
        self.norm = nn.BatchNorm1d(block.width)

    def forward(self, sound: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        for conv in self.convs:
            sound, lengths = conv(sound, lengths)
        return self.norm(sound), lengths


class _Block(nn.Module):
    def __init__(self, incoming: Sequence[int], block: AcousticBlock) -> None:
        super().__init__()
        widths = [incoming[-1], *[block.width] * (block.repeats - 1)]
        self.inside = nn.ModuleList([_Normed(width, block, stride=block.stride) for width in widths])
        self.beside = nn.ModuleList([_Normed(width, block, is_beside=True) for width in incoming if block.is_residual])
        self.dropout = nn.Dropout(block.dropout)

    def forward(self, inputs: list[Tensor], lengths: Tensor) -> tuple[Tensor, Tensor]:
        sound, after = inputs[-1], lengths
        for at, layer in enumerate(self.inside):
            sound, after = layer(sound, after)
            if at < len(self.inside) - 1:
                sound = self.dropout(functional.relu(sound))
        for layer, each in zip(self.beside, inputs if self.beside else [], strict=True):
            sound = sound + layer(each, lengths)[0]
        return self.dropout(functional.relu(sound)), after


class AcousticModel(nn.Module):
    """A network of convolutions from 64 features of a frame to 28 letters and a blank.

    Args:
        blocks: Its blocks.
        is_dense: Whether a residual block is added the inputs of all residual blocks up to it, not its own alone.

    Shapes:
        input: features (batch, 64, frames) and lengths (batch,); output (batch, frames / 2, 29).
    """

    def __init__(self, blocks: Sequence[AcousticBlock], *, is_dense: bool) -> None:
        super().__init__()
        self.is_kept = [is_dense and block.is_residual for block in blocks]
        self.blocks = nn.ModuleList()
        widths = [64]
        for block, is_kept in zip(blocks, self.is_kept, strict=True):
            self.blocks.append(_Block(widths, block))
            widths = [*widths, block.width] if is_kept else [block.width]
        self.letters = nn.Conv1d(widths[-1], 29, 1)

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Log-probabilities of the letters of each frame."""
        inputs = [features]
        for block, is_kept in zip(self.blocks, self.is_kept, strict=True):
            sound, lengths = block(inputs, lengths)
            inputs = [*inputs, sound] if is_kept else [sound]
        return functional.log_softmax(self.letters(inputs[-1]).transpose(1, 2), dim=2)


class NeuMf(nn.Module):
    """Neural collaborative filtering (He et al., WWW 2017) of MovieLens 20M, with 64 factors and three hidden layers.

    Dropout is active in evaluation too, as in the script behind the times.

    Args:
        has_sigmoid: Whether the last layer's score becomes a probability.

    Shapes:
        input: users and items (batch,); output (batch, 1).
    """

    def __init__(self, *, has_sigmoid: bool) -> None:
        super().__init__()
        users, items, factors, widths = 138_493, 26_744, 64, (256, 256, 128, 64)
        self.has_sigmoid = has_sigmoid
        self.user_factors, self.item_factors = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.users, self.items = nn.Embedding(users, widths[0] // 2), nn.Embedding(items, widths[0] // 2)
        self.layers = nn.ModuleList([nn.Linear(*pair) for pair in pairwise(widths)])
        self.score = nn.Linear(widths[-1] + factors, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """How much each user likes its item."""
        product = self.user_factors(user) * self.item_factors(item)
        hidden = torch.cat((self.users(user), self.items(item)), dim=1)
        for layer in self.layers:
            hidden = functional.dropout(functional.relu(layer(hidden)), 0.5, training=True)
        score: Tensor = self.score(torch.cat((product, hidden), dim=1))
        return score.sigmoid() if self.has_sigmoid else score


class TransformerXl(nn.Module):
    """Transformer-XL of WikiText-103 (Dai et al., ACL 2019), with the loss of each word but for the rare ones.

    Its adaptive softmax looks among the 19,997 frequent words and the three clusters of rare ones; what it does within
    the clusters depends on the text, is a few percent of the work, and is left out.

    Args:
        layers: How many.
        width: Of a position; heads have 64 of it, feed-forward layers four times as much.
        is_projected: Whether words have a projection of their own before and behind the layers (``div_val`` of 4).

    Shapes:
        input: words and targets (tokens, batch), memory (layers, past tokens, batch, width); output: losses (tokens,
        batch) and the new memory.
    """

    _WORDS, _FREQUENT, _CLUSTERS, _HEAD = 267_735, 19_997, 3, 64

    def __init__(self, layers: int, width: int, *, is_projected: bool) -> None:
        super().__init__()
        heads = width // self._HEAD
        self.words = nn.Embedding(self._FREQUENT if is_projected else self._WORDS, width)
        self.clusters = nn.Parameter(torch.empty(self._CLUSTERS, width))
        self.bias = nn.Parameter(torch.empty(self._FREQUENT + self._CLUSTERS))
        self.before = nn.Linear(width, width, bias=False) if is_projected else None
        self.behind = nn.Linear(width, width, bias=False) if is_projected else None
        self.content_bias = nn.Parameter(torch.empty(heads, self._HEAD))
        self.position_bias = nn.Parameter(torch.empty(heads, self._HEAD))
        self.dropout = nn.Dropout(0.1)
        self.layers = nn.ModuleList([_RecurrentLayer(width, heads) for _ in range(layers)])

    def forward(self, words: Tensor, targets: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each word, and what the next segment looks back at."""
        hidden = self.words(words)
        hidden = (hidden if self.before is None else self.before(hidden)) * hidden.shape[-1] ** 0.5
        tokens, width = words.shape[0], hidden.shape[-1]
        seen = memory.shape[1] + tokens
        rates = 10_000 ** (-torch.arange(0, width, 2, device=hidden.device) / width)
        angles = torch.outer(torch.arange(seen - 1, -1, -1, device=hidden.device), rates)
        positions = self.dropout(torch.cat((angles.sin(), angles.cos()), dim=-1).to(hidden.dtype))
        hidden = self.dropout(hidden)
        is_hidden = torch.ones(tokens, seen, device=hidden.device).triu(1 + memory.shape[1]).bool()
        kept = []
        for layer, past in zip(self.layers, memory, strict=True):
            kept.append(hidden.detach())
            hidden = layer(hidden, past, positions, (self.content_bias, self.position_bias), is_hidden)
        hidden = self.dropout(hidden).flatten(0, 1)
        if self.behind is not None:
            hidden = self.behind(hidden)
        weight = torch.cat((self.words.weight[: self._FREQUENT], self.clusters))
        scores = functional.log_softmax(functional.linear(hidden, weight, self.bias), dim=1)
        losses = -scores.gather(1, targets.flatten()[:, None]).view_as(targets)
        return losses, torch.cat((memory, torch.stack(kept)), dim=1)[:, tokens:]


class _RecurrentLayer(nn.Module):
    """Attention to this segment and the last ones by content and by distance, and a feed-forward layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.projections = nn.Linear(width, 3 * width, bias=False)
        self.distances = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.norm, self.last_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(inplace=True), nn.Dropout(0.1), nn.Linear(4 * width, width),
            nn.Dropout(0.1),
        )  # fmt: skip

    def forward(
        self, hidden: Tensor, past: Tensor, positions: Tensor, biases: tuple[Tensor, Tensor], is_hidden: Tensor
    ) -> Tensor:
        tokens, batch, width = hidden.shape
        query, key, value = self.projections(torch.cat((past, hidden))).chunk(3, dim=-1)
        query, key, value = (each.view(each.shape[0], batch, self.heads, -1) for each in (query[-tokens:], key, value))
        distance = self.distances(positions).view(-1, self.heads, width // self.heads)
        by_content = torch.einsum("ibnd,jbnd->bnij", query + biases[0], key)
        by_distance = _shift(torch.einsum("ibnd,jnd->bnij", query + biases[1], distance))
        scores = (by_content + by_distance) * (width // self.heads) ** -0.5
        weights = scores.masked_fill(is_hidden, -torch.inf).softmax(dim=3)
        seen = torch.einsum("bnij,jbnd->ibnd", weights, value).reshape(tokens, batch, width)
        hidden = self.norm(hidden + self.dropout(self.output(seen)))
        result: Tensor = self.last_norm(hidden + self.feed_forward(hidden))
        return result


def _shift(scores: Tensor) -> Tensor:
    """Move each row so that a column stands for a position where it stood for a distance (appendix B of the paper)."""
    batch, heads, rows, columns = scores.shape
    padded = functional.pad(scores, (1, 0)).view(batch, heads, columns + 1, rows)
    return padded[:, :, 1:].reshape(batch, heads, rows, columns)
