"""Exported programs that take the time in front of the batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_torch_file  # noqa: E402
from dippm.graph import Graph  # noqa: E402

MARK = "The model takes time first"


class Stated(nn.Module):
    """The states in which it begins are inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 8)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return self.lstm(x, (h, c))[0]


def _shapes(graph: Graph) -> list[str]:
    return [",".join(map(str, graph.tensors[index].shape)) for index in graph.inputs]


def _told(graph: Graph) -> list[str]:
    return [warning for warning in graph.warnings if warning.startswith(MARK)]


def _read(path: Path, given: object = None) -> Graph:
    return read_torch_file(path, input=parse_input_shapes(given))


def test_the_batch_is_the_second_dimension(export: Callable[..., Path], tmp_path: Path) -> None:
    path = export(nn.LSTM(16, 8, 2), tmp_path / "m.pt2", torch.zeros(20, 3, 16))
    graph = _read(path)
    assert (graph.fixed_batch, _shapes(graph)) == (None, ["20,N,16"])
    assert _shapes(_read(path, "20,16")) == ["20,N,16"]
    (told,) = _told(graph)
    assert "the second dimension of input" in told


def test_a_batch_that_is_open_is_found_there(export: Callable[..., Path], tmp_path: Path) -> None:
    shapes = ({1: torch.export.Dim("batch")},)
    graph = _read(export(nn.GRU(16, 8), tmp_path / "m.pt2", torch.zeros(20, 3, 16), dynamic_shapes=shapes))
    assert (graph.fixed_batch, _shapes(graph)) == (None, ["20,N,16"])
    assert _told(graph)


def test_attention_takes_time_first_too(export: Callable[..., Path], tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32)
    graph = _read(export(layer, tmp_path / "m.pt2", torch.zeros(20, 3, 16)))
    assert (graph.fixed_batch, _shapes(graph)) == (None, ["20,N,16"])
    assert "the MultiheadAttention 'self_attn'" in _told(graph)[0]


def test_states_of_the_exported_batch_follow_it(export: Callable[..., Path], tmp_path: Path) -> None:
    states = (torch.zeros(1, 3, 8), torch.zeros(1, 3, 8))
    graph = _read(export(Stated(), tmp_path / "m.pt2", torch.zeros(20, 3, 16), *states))
    assert (graph.fixed_batch, _shapes(graph)[0]) == (None, "20,N,16")


@pytest.mark.parametrize("make", [nn.LSTM, lambda *sizes, **options: nn.TransformerEncoderLayer(16, 2, 32, **options)])
def test_batch_first_is_left_as_it_is(
    export: Callable[..., Path], tmp_path: Path, make: Callable[..., nn.Module]
) -> None:
    graph = _read(export(make(16, 8, batch_first=True), tmp_path / "m.pt2", torch.zeros(3, 20, 16)))
    assert (graph.fixed_batch, _shapes(graph), _told(graph)) == (None, ["N,20,16"], [])


def test_where_time_and_batch_are_of_one_size_a_warning_stands(export: Callable[..., Path], tmp_path: Path) -> None:
    graph = _read(export(nn.LSTM(16, 8), tmp_path / "m.pt2", torch.zeros(6, 6, 16)))
    (told,) = _told(graph)
    assert "what is called the batch here is its number of steps" in told
    turned = _read(export(nn.LSTM(16, 8, batch_first=True), tmp_path / "m.pt2", torch.zeros(6, 6, 16)))
    assert not _told(turned)
