"""Packed sequences of full length mean what PyTorch's do, and every recurrent layer over them is one operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence  # noqa: E402

from dippm.costs import Workload  # noqa: E402
from dippm.frontends.torch.packed_sequences import FULL_LENGTH, PACKED  # noqa: E402
from dippm.graph import Dim, Graph, OpKind  # noqa: E402

aten = torch.ops.aten


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("total_length", [0, 7])
def test_packing_and_padding(batch_first: bool, total_length: int) -> None:
    x = torch.arange(30.0).view(3, 5, 2) if batch_first else torch.arange(30.0).view(5, 3, 2)
    lengths = torch.tensor([5, 5, 5])
    pack, pad = aten._pack_padded_sequence.default, aten._pad_packed_sequence.default
    packed = pack(x, lengths, batch_first)
    for result, expected in zip(PACKED[pack](x, lengths, batch_first), packed, strict=True):
        assert torch.equal(result, expected)
    arguments = (*packed, batch_first, -1.0, total_length)
    for result, expected in zip(PACKED[pad](*arguments), pad(*arguments), strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(layer: Any) -> None:
    torch.manual_seed(0)
    module = layer(4, 6, num_layers=2, bidirectional=True)
    name = "rnn_tanh" if layer is nn.RNN else layer.__name__.lower()
    data, batch_sizes = torch.randn(15, 4), torch.tensor([3] * 5)
    state = torch.zeros(4, 3, 6)
    states = [state, state] if layer is nn.LSTM else state
    arguments = (data, batch_sizes, states, module._flat_weights, True, 2, 0.0, False, True)
    operator = getattr(aten, name).data
    with torch.inference_mode():
        for result, expected in zip(PACKED[operator](*arguments), operator(*arguments), strict=True):
            torch.testing.assert_close(result, expected)


class Tagger(nn.Module):
    def __init__(self, *, is_sorted: bool) -> None:
        super().__init__()
        self.layer = nn.LSTM(8, 16, batch_first=True)
        self.is_sorted = is_sorted

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        known = [x.shape[1]] * x.shape[0] if lengths is None else lengths.cpu()
        packed = pack_padded_sequence(x, known, batch_first=True, enforce_sorted=self.is_sorted)
        return pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("given", ["12,8", {"x": (12, 8), "lengths": ((), "int64")}])
def test_sequences_are_as_long_as_they_are_padded_to(given: Any, is_sorted: bool, read: Callable[..., Graph]) -> None:
    graph = read(Tagger(is_sorted=is_sorted), given)
    assert graph.fixed_batch is None
    assert graph.warnings == (FULL_LENGTH,)
    assert graph.tensors[graph.outputs[0]].shape == (Dim(1, 0), Dim(0, 12), Dim(0, 16))
    assert [node.kind for node in graph.nodes].count(OpKind.LSTM) == 1
    # 12 steps: 4 gates of 16, each from 8 inputs and 16 states.
    assert Workload.from_graph(graph).at([5]).macs.sum() == 5 * 12 * 4 * 16 * (8 + 16)
