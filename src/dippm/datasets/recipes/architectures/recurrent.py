"""RNN, LSTM and GRU over a sequence of vectors, with a classifier on the last step."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["RecurrentClassifier"]

_CELLS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


class RecurrentClassifier(nn.Module):
    """Recurrent layers and one fully connected layer.

    Args:
        cell: ``"rnn"``, ``"lstm"`` or ``"gru"``.
        features: Size of each vector of the sequence.
        hidden: Size of the state.
        layers: Number of recurrent layers.
        bidirectional: Whether each layer runs both ways.
        classes: Number of classes.

    Shapes:
        - input: (batch, length, features)
        - output: (batch, classes)
    """

    def __init__(
        self, *, cell: str, features: int, hidden: int, layers: int, bidirectional: bool, classes: int
    ) -> None:
        super().__init__()
        self.recurrent = _CELLS[cell](features, hidden, layers, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(hidden * (2 if bidirectional else 1), classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the classes."""
        states, _ = self.recurrent(x)
        result: torch.Tensor = self.head(states[:, -1])
        return result
