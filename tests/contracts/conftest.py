"""The five architectures that every framework builds, as PyTorch builds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One architecture.

    Args:
        build: Makes the PyTorch module, in evaluation mode.
        input: What ``dippm.load`` takes for it: sizes of one sample, channels first.
    """

    build: Callable[[], Any]
    input: Any


SEQUENCE_LENGTH = 128
LSTM_FEATURES, LSTM_HIDDEN, LSTM_CLASSES = 64, 256, 10
BERT_VOCABULARY, BERT_HIDDEN, BERT_HEADS, BERT_LAYERS = 30522, 512, 8, 4  # BERT-small of Turc et al., 2019


def _torchvision(name: str) -> Any:
    from dippm.frontends.torch.torchvision_ops import import_torchvision_ops

    import_torchvision_ops()
    models = pytest.importorskip("torchvision.models")
    return models.get_model(name, weights=None).eval()


def _lstm() -> Any:
    from torch import nn

    class TwoLayerLSTM(nn.Module):
        """The last output of two LSTM layers, classified."""

        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(LSTM_FEATURES, LSTM_HIDDEN, num_layers=2, batch_first=True)
            self.head = nn.Linear(LSTM_HIDDEN, LSTM_CLASSES)

        def forward(self, x: Any) -> Any:
            return self.head(self.lstm(x)[0][:, -1])

    return TwoLayerLSTM().eval()


def _bert() -> Any:
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        """Attention and two linear layers, each followed by a norm."""

        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Linear(BERT_HIDDEN, BERT_HIDDEN) for _ in range(4))
            self.up = nn.Linear(BERT_HIDDEN, 4 * BERT_HIDDEN)
            self.down = nn.Linear(4 * BERT_HIDDEN, BERT_HIDDEN)
            self.norm_1, self.norm_2 = nn.LayerNorm(BERT_HIDDEN, eps=1e-12), nn.LayerNorm(BERT_HIDDEN, eps=1e-12)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            heads = (
                layer(x).view(batch, length, BERT_HEADS, -1).transpose(1, 2)
                for layer in (self.query, self.key, self.value)
            )
            mixed = functional.scaled_dot_product_attention(*heads)
            x = self.norm_1(x + self.out(mixed.transpose(1, 2).reshape(batch, length, BERT_HIDDEN)))
            return self.norm_2(x + self.down(functional.gelu(self.up(x))))

    class Encoder(nn.Module):
        """Embeddings of tokens and places, blocks, and a pooler on the first token."""

        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(BERT_VOCABULARY, BERT_HIDDEN)
            self.places = nn.Parameter(torch.zeros(SEQUENCE_LENGTH, BERT_HIDDEN))
            self.norm = nn.LayerNorm(BERT_HIDDEN, eps=1e-12)
            self.blocks = nn.ModuleList(Block() for _ in range(BERT_LAYERS))
            self.pooler = nn.Linear(BERT_HIDDEN, BERT_HIDDEN)

        def forward(self, input_ids: Any) -> Any:
            x = self.norm(self.tokens(input_ids) + self.places)
            for block in self.blocks:
                x = block(x)
            return torch.tanh(self.pooler(x[:, 0]))

    return Encoder().eval()


@pytest.fixture(scope="session")
def reference_models() -> Mapping[str, Reference]:
    """PyTorch's way of building each architecture, by name."""
    pytest.importorskip("torch")
    image = (3, 224, 224)
    return {
        "vgg16": Reference(build=lambda: _torchvision("vgg16"), input=image),
        "resnet50": Reference(build=lambda: _torchvision("resnet50"), input=image),
        "mobilenet_v2": Reference(build=lambda: _torchvision("mobilenet_v2"), input=image),
        "lstm": Reference(build=_lstm, input=(SEQUENCE_LENGTH, LSTM_FEATURES)),
        "bert": Reference(build=_bert, input=((SEQUENCE_LENGTH,), "int64")),
    }
