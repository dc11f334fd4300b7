"""Recurrent layers over packed sequences, as the same layers over sequences that are all of one length.

A packed sequence leaves out what sequences were padded with. How much that is only the values of the lengths say, and
those are mostly an input of the model, so all sequences count as long as they are padded to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

__all__ = ["FULL_LENGTH", "PACKED"]

FULL_LENGTH = "Packed sequences are taken to be all as long as they are padded to."

_aten = torch.ops.aten


def _pack(x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ARG001
    """Step by step all samples, and the number of samples of each step."""
    by_step = x.transpose(0, 1) if batch_first else x
    steps, samples = by_step.shape[:2]
    return torch.cat([by_step.reshape(steps * samples, *by_step.shape[2:])]), torch.tensor([samples] * steps)


def _pad(
    data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sequences copied into a padded tensor, and their lengths."""
    by_step = _unpacked(data, batch_sizes)
    steps, samples, *rest = by_step.shape
    padded = data.new_full((max(total_length, steps), samples, *rest), padding_value)
    padded[:steps] = by_step
    return padded.transpose(0, 1) if batch_first else padded, torch.tensor([steps] * samples)


def _recurrent(
    layer: Callable[..., Sequence[torch.Tensor]], data: torch.Tensor, batch_sizes: torch.Tensor, *args: Any
) -> tuple[torch.Tensor, ...]:
    output, *states = layer(_unpacked(data, batch_sizes), *args, False)
    return output.reshape(data.shape[0], -1), *states


def _unpacked(data: torch.Tensor, batch_sizes: torch.Tensor) -> torch.Tensor:
    steps = batch_sizes.shape[0]
    return data.view(steps, data.shape[0] // steps, *data.shape[1:])


PACKED: Mapping[Any, Callable[..., Any]] = {
    _aten._pack_padded_sequence.default: _pack,
    _aten._pad_packed_sequence.default: _pad,
    _aten.lstm.data: partial(_recurrent, _aten.lstm.input),
    _aten.gru.data: partial(_recurrent, _aten.gru.input),
    _aten.rnn_tanh.data: partial(_recurrent, _aten.rnn_tanh.input),
    _aten.rnn_relu.data: partial(_recurrent, _aten.rnn_relu.input),
}
