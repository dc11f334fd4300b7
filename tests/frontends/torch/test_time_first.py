"""Models that take the time in front of the batch: their batch is the second dimension, where a reading shows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dippm.costs import Workload  # noqa: E402
from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_torch_file  # noqa: E402
from dippm.frontends.torch.time_first import name_time_first, turn_inputs, turnable  # noqa: E402
from dippm.graph import Graph  # noqa: E402

MARK = "The model takes time first"


class Tokens(nn.Module):
    """Words in the order of time, with the batch beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.gru = nn.GRU(16, 8, 2, bidirectional=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.gru(self.embedding(x))[0][-1])


class Columns(nn.Module):
    """Columns of an image are the time of an LSTM, which is turned inside."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, 2)
        self.lstm = nn.LSTM(8 * 7, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(self.conv(x).flatten(1, 2).permute(2, 0, 1))[0]


class Sentence(nn.Module):
    """One sentence at a time, whose words stand where others have their batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 16)
        self.lstm = nn.LSTM(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(self.embedding(x).view(len(x), 1, -1))[0]


class Packed(nn.Module):
    """Lengths of the samples beside the sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 8)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0])[0]


class Masked(nn.Module):
    """A mask of samples beside sequences."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.layer(x, src_key_padding_mask=mask)


def _shapes(graph: Graph, batch: int = 4) -> list[tuple[int, ...]]:
    return [tuple(dim.at(batch) for dim in graph.tensors[index].shape) for index in graph.inputs]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize(
    ("make", "given", "shapes", "layer"),
    [
        (lambda: nn.LSTM(16, 8, 2), "20,16", [(20, 4, 16)], "its LSTM"),
        (lambda: nn.RNN(16, 8), "20,16", [(20, 4, 16)], "its RNN"),
        (Tokens, "20:int64", [(20, 4)], "the GRU 'gru'"),
        (Packed, ["20,16", ((), "int64")], [(20, 4, 16), (4,)], "the LSTM 'lstm'"),
        (lambda: nn.TransformerEncoderLayer(16, 2, 32), "20,16", [(20, 4, 16)], "the MultiheadAttention 'self_attn'"),
        (lambda: Masked(batch_first=False), ["20,16", "20:bool"], [(20, 4, 16), (4, 20)], "'layer.self_attn'"),
        (
            lambda: nn.Transformer(16, 2, 1, 1, 32),
            ["20,16", "10,16"],
            [(20, 4, 16), (10, 4, 16)],
            "'encoder.layers.0.self_attn'",
        ),
    ],
)
def test_the_batch_stands_behind_the_time(
    read: Callable[..., Graph], make: Callable[[], nn.Module], given: object, shapes: list[tuple[int, ...]], layer: str
) -> None:
    graph = read(make(), given)
    assert graph.fixed_batch is None
    assert _shapes(graph) == shapes
    (told,) = (warning for warning in graph.warnings if warning.startswith(MARK))
    assert layer in told
    assert "the second dimension of" in told


def test_it_does_the_work_of_the_same_model_with_the_batch_first(read: Callable[..., Graph]) -> None:
    for make in (nn.LSTM, nn.GRU):
        first, second = (
            Workload.from_graph(read(make(16, 8, 2, batch_first=is_first), "20,16")).at([4]).macs.sum()
            for is_first in (False, True)
        )
        assert first == second > 0


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda: nn.LSTM(16, 8, batch_first=True), "20,16"),
        (lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), "20,16"),
        (lambda: Masked(batch_first=True), ["20,16", "20:bool"]),
        (lambda: nn.Transformer(16, 2, 1, 1, 32, batch_first=True), ["20,16", "10,16"]),
        (Columns, "3,16,40"),
    ],
)
def test_other_models_are_left_as_they_are(
    read: Callable[..., Graph], make: Callable[[], nn.Module], given: object
) -> None:
    graph = read(make(), given)
    assert all(shape[0] == 4 for shape in _shapes(graph))
    assert not any(warning.startswith(MARK) for warning in graph.warnings)


@pytest.mark.parametrize(("make", "given"), [(Sentence, [((), "int64")]), (lambda: nn.LSTM(16, 8), "16")])
def test_where_the_batch_is_nowhere_else_it_is_said(
    read: Callable[..., Graph], make: Callable[[], nn.Module], given: object
) -> None:
    graph = read(make(), given)
    assert _shapes(graph)[0][0] == 4
    (told,) = (warning for warning in graph.warnings if warning.startswith(MARK))
    assert "what is called the batch here is its number of steps" in told
    assert "batch_first=True" in told


def test_a_whole_shape_is_taken_as_it_is(read: Callable[..., Graph]) -> None:
    graph = read(nn.LSTM(16, 8), "4,20,16:unbatched")
    assert _shapes(graph) == [(4, 20, 16)]
    assert not graph.warnings


def test_shapes_that_fit_neither_way_are_refused_as_they_were_given(read: Callable[..., Graph]) -> None:
    with pytest.raises(Exception, match=r"inputs of shape \[2, 20, 15\]"):
        read(nn.LSTM(16, 8), "20,15")


def test_a_traced_model_is_turned_too(save_script: Callable[..., Path], tmp_path: Path) -> None:
    path = save_script(Tokens(), tmp_path / "m.pt", example=torch.zeros(20, 2, dtype=torch.int64))
    graph = read_torch_file(path, input=parse_input_shapes("20:int64"))
    assert _shapes(graph) == [(20, 4)]


def test_layers_are_named() -> None:
    assert name_time_first(Tokens()) == "the GRU 'gru'"
    assert name_time_first(nn.LSTM(4, 4)) == "its LSTM"
    assert name_time_first(nn.LSTM(4, 4, batch_first=True)) == ""


def test_inputs_with_time_and_features_are_tried_first() -> None:
    given = parse_input_shapes({"x": "20,16", "mask": "20:bool", "table": "8,8:unbatched", "step": ((), "int64")})
    assert turnable(given) == ((0,), (0, 1))
    turned = turn_inputs(given, (0,))
    assert turned is not None
    assert [entry.at(4) for entry in turned.entries] == [(20, 4, 16), (4, 20), (8, 8), (4,)]
    assert turn_inputs(given, (3,)) is None
    assert turn_inputs(given, ()) is None
