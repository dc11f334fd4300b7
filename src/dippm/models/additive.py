"""The additive network: a correction of every operator's physical time, from what it is and what stands beside it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dippm.features.physical import LARGEST_CORRECTION

__all__ = ["AdditiveNetwork", "MessageTensors", "mean_messages"]

MessageTensors = tuple[Tensor, Tensor, Tensor]
"""Source, target and weight of messages, see :class:`dippm.features.physical.Messages`."""


class AdditiveNetwork(nn.Module):
    """Two corrections of each operator: of its kernel's time and of its launch overhead.

    The time of a graph is ``sum of kernel_ms * exp(c_0) + launches * LAUNCH_MS * exp(c_1)`` over its operators, so each
    operator's part of the prediction is known. An operator's embedding starts from its features alone; in each round it
    adds what it hears, as means, from the operators that it reads from and from those that read it.

    Args:
        inputs: Width of the node features.
        width: Width of the embeddings.
        rounds: Rounds of messages.
        dropout: Share of values dropped in training, 0 to 1.
    """

    def __init__(self, *, inputs: int, width: int = 64, rounds: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.input = nn.Linear(inputs, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(rounds))
        self.producers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(rounds))
        self.consumers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(rounds))
        self.output = nn.Linear(width, 2)
        self.dropout = nn.Dropout(dropout)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, features: Tensor, producers: MessageTensors, consumers: MessageTensors) -> Tensor:
        """Logarithms of both corrections of each operator.

        Args:
            features: Scaled node features.
            producers: Source, target and weight of the messages from producers.
            consumers: The same of the messages from consumers.

        Shapes:
            features: [N, inputs]; source, target, weight: [E]; result: [N, 2].
        """
        values = torch.relu(self.input(features))
        for own, producer, consumer in zip(self.own, self.producers, self.consumers, strict=True):
            heard = producer(mean_messages(values, producers)) + consumer(mean_messages(values, consumers))
            values = values + self.dropout(torch.relu(own(values) + heard))
        result: Tensor = LARGEST_CORRECTION * torch.tanh(self.output(values) / LARGEST_CORRECTION)
        return result


def mean_messages(values: Tensor, messages: MessageTensors) -> Tensor:
    """Mean over the neighbours of each operator, 0 where there is none.

    Shapes:
        values: [N, W]; source, target, weight: [E]; result: [N, W].
    """
    source, target, weight = messages
    result = torch.zeros_like(values)
    return result.index_add(0, target, values[source] * weight[:, None])
