"""torch.export archives: batch sizes written into them, shared weights, foreign content."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from dippm.errors import UsageError  # noqa: E402
from dippm.frontends.inputs import InputShapes, parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_module, read_torch_file  # noqa: E402
from dippm.graph import Dim, OpKind  # noqa: E402

NOTHING = InputShapes()


class Tokens(nn.Module):
    """The parts of a vision transformer that write the batch into view arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 24))
        self.attend = nn.MultiheadAttention(24, 3, batch_first=True)
        self.norm = nn.LayerNorm(24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length = x.shape[0], x.shape[1]
        x = torch.cat([self.token.expand(batch, -1, -1), x], 1)
        x = x + self.attend(x, x, x, need_weights=False)[0]
        heads = self.norm(x).reshape(batch, length + 1, 3, 8).permute(0, 2, 1, 3)
        windows = heads.reshape(batch * 3, length + 1, 8)
        return torch.bmm(windows, windows.transpose(1, 2)).view(batch, 3, -1).mean(1)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_a_batch_written_into_the_program_is_opened(tmp_path: Path, batch: int, export: Callable[..., Path]) -> None:
    path = export(Tokens(), tmp_path / "m.pt2", torch.zeros(batch, 6, 24))
    graph = read_torch_file(path, input=NOTHING)
    assert graph.fixed_batch is None, graph.fixed_batch_reason
    eager = read_module(Tokens(), input=parse_input_shapes("6,24"))

    def products(of: Any) -> list[tuple[Dim, ...]]:
        wanted = {OpKind.LINEAR, OpKind.MATMUL, OpKind.ATTENTION, OpKind.LAYER_NORM}
        return [of.tensors[node.outputs[0]].shape for node in of.nodes if node.kind in wanted]

    assert products(graph) == products(eager)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_recurrent_states_follow_the_batch(
    tmp_path: Path, layer: Callable[..., nn.Module], export: Callable[..., Path]
) -> None:
    path = export(layer(8, 16, num_layers=2, batch_first=True), tmp_path / "m.pt2", torch.zeros(1, 5, 8))
    graph = read_torch_file(path, input=NOTHING)
    assert graph.fixed_batch is None, graph.fixed_batch_reason
    assert graph.tensors[graph.outputs[0]].shape == (Dim(1, 0), Dim(0, 5), Dim(0, 16))


def test_a_batch_that_cannot_be_opened_keeps_the_exported_one(tmp_path: Path, export: Callable[..., Path]) -> None:
    class Mixes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.pad(x.t(), (0, 3 * x.shape[0] * x.shape[0] - x.shape[0]))

    path = export(Mixes(), tmp_path / "m.pt2", torch.zeros(4, 6))
    graph = read_torch_file(path, input=NOTHING)
    assert graph.fixed_batch in {None, 4}
    if graph.fixed_batch == 4:
        assert "dynamic_shapes" in graph.fixed_batch_reason
    at = 4
    assert [dim.at(at) for dim in graph.tensors[graph.outputs[0]].shape] == [6, 48]


def test_shared_weights_count_once(tmp_path: Path, export: Callable[..., Path]) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(50, 16)
            self.head = nn.Linear(16, 50, bias=False)
            self.head.weight = self.table.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(tokens))

    path = export(Tied(), tmp_path / "m.pt2", torch.zeros(1, 12, dtype=torch.int64))
    assert read_torch_file(path, input=NOTHING).parameter_count == 800


def test_several_open_dimensions_need_shapes(tmp_path: Path, export: Callable[..., Path]) -> None:
    class Any2d(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu().sum(-1)

    dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    path = export(Any2d(), tmp_path / "m.pt2", torch.zeros(2, 6), dynamic_shapes=(dims,))
    with pytest.raises(UsageError) as caught:
        read_torch_file(path, input=NOTHING)
    assert caught.value.code == "input.shape_needed"
    assert 'input={"x": "128"} (--input x=128)' in (caught.value.cure or "")
    graph = read_torch_file(path, input=parse_input_shapes("9"))
    assert graph.tensors[graph.inputs[0]].shape == (Dim(1, 0), Dim(0, 9))


class OfADict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(10, 4), nn.Linear(4, 2)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.linear(self.embedding(batch["ids"]) * batch["mask"].unsqueeze(-1))


def test_inputs_within_an_argument_are_named_by_their_path(tmp_path: Path, export: Callable[..., Path]) -> None:
    example: Any = {"ids": torch.zeros(2, 6, dtype=torch.int64), "mask": torch.ones(2, 6)}
    path = export(OfADict(), tmp_path / "dict.pt2", example)

    def sizes(given: dict[str, str]) -> list[tuple[Dim, ...]]:
        graph = read_torch_file(path, input=parse_input_shapes(given))
        return [graph.tensors[index].shape for index in graph.inputs]

    expected = [(Dim(1, 0), Dim(0, 6))] * 2
    for ids, mask in (("batch.ids", "batch.mask"), ("batch_ids", "batch_mask"), ("batch.ids", "batch_mask")):
        assert sizes({ids: "6:int64", mask: "6"}) == expected
    # What is not named is as it was exported.
    assert sizes({"batch.ids": "6:int64"}) == sizes({"batch_mask": "6"}) == expected
    for other in ("batch.other", "batch_ids"):
        with pytest.raises(UsageError, match="batch_ids, batch_mask") as caught:
            sizes({"batch.ids": "6:int64", other: "6"})
        assert caught.value.code == "input.name_unknown"


class Table(nn.Module):
    """Positions that the code repeats for each sample, by a dimension of their own or between two."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.register_buffer("positions", torch.zeros(6, 24))
        self.layer = nn.Linear(24, 40)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        repeats = [1, 1, 1]
        repeats[self.axis] = x.shape[0]
        return self.layer(self.positions.unsqueeze(self.axis).repeat(repeats)), self.layer(x)


class Bags(nn.Module):
    """Means of the embeddings of each row of indices."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(100, 24)
        self.layer = nn.Linear(24, 40)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layer(self.bags(ids))


class Picked(nn.Module):
    """Rows of each sample, by indices that the code makes for the batch: ``torch.gather`` takes fewer silently."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 40)
        # As long as the batch is large: not every range is of samples.
        self.frequencies = nn.Linear(2, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(3).unsqueeze(0).repeat(x.shape[0], 1)
        x = x + self.frequencies(torch.arange(2).to(x.dtype))
        return self.layer(torch.gather(x, 1, rows.unsqueeze(-1).expand(-1, -1, 24)))


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize(
    ("module", "given", "example"),
    [
        (Table(0), "6,24", torch.zeros(1, 6, 24)),
        (Table(1), "6,24", torch.zeros(1, 6, 24)),
        (Bags(), ["9:int64"], torch.zeros(1, 9, dtype=torch.int64)),
        (Picked(), "6,24", torch.zeros(1, 6, 24)),
    ],
    ids=["table", "table between", "bags", "gather"],
)
def test_what_the_code_makes_for_each_sample_follows_the_batch(
    tmp_path: Path, module: nn.Module, given: Any, example: torch.Tensor, batch: int, export: Callable[..., Path]
) -> None:
    if batch == 1 and isinstance(module, Table) and module.axis == 1:
        pytest.skip("nothing tells a table repeated once between two dimensions from one that is not repeated")
    path = export(module, tmp_path / "m.pt2", example.repeat(batch, *[1] * (example.dim() - 1)))
    graph = read_torch_file(path, input=NOTHING)
    assert graph.fixed_batch is None, graph.fixed_batch_reason
    eager = read_module(module, input=parse_input_shapes(given))

    def products(of: Any) -> list[tuple[Dim, ...]]:
        return [of.tensors[node.outputs[0]].shape for node in of.nodes if node.kind is OpKind.LINEAR]

    assert products(graph) == products(eager)


def test_a_batch_that_stands_in_an_operator_is_not_answered_at_others(
    tmp_path: Path, export: Callable[..., Path]
) -> None:
    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(24, 40)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.index_select(x, 0, torch.randperm(x.shape[0])))

    graph = read_torch_file(export(Chosen(), tmp_path / "m.pt2", torch.zeros(4, 6, 24)), input=NOTHING)
    assert graph.fixed_batch == 4
    assert "aten.linear of 'layer' takes [4, 6, 24] at every batch" in graph.fixed_batch_reason
    assert "dynamic_shapes" in graph.fixed_batch_reason
    assert graph.tensors[graph.outputs[0]].shape == (Dim(0, 4), Dim(0, 6), Dim(0, 40))


@pytest.mark.parametrize("batch", [2, 6])
def test_outputs_that_are_rightly_of_one_size(tmp_path: Path, batch: int, export: Callable[..., Path]) -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.zeros(6, 24))
            self.layer = nn.Linear(24, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = self.layer(x)
            return y, self.layer(self.table), y.mean(), torch.stack([y.mean(), y.std()]), torch.arange(24)

    graph = read_torch_file(export(Constant(), tmp_path / "m.pt2", torch.zeros(batch, 24)), input=NOTHING)
    assert graph.fixed_batch is None, graph.fixed_batch_reason


class Rows(nn.Module):
    """Its length is written into the program."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0] * x.shape[1], x.shape[2]).reshape(x.shape) * 2


@pytest.mark.parametrize(("given", "is_open"), [("8,4", False), ("4", False), ("8,4", True)])
def test_other_sizes_than_those_of_the_export_are_told_them(
    tmp_path: Path, export: Callable[..., Path], given: str, *, is_open: bool
) -> None:
    options: dict[str, Any] = {"dynamic_shapes": ({0: torch.export.Dim.DYNAMIC},)} if is_open else {}
    path = export(Rows(), tmp_path / "m.pt2", torch.zeros(2, 6, 4), **options)
    with pytest.raises(UsageError) as caught:
        read_torch_file(path, input=parse_input_shapes(given))
    assert caught.value.code == "input.shape_wrong"
    assert "--input x=6,4," in (caught.value.cure or "")
    assert "shape of one sample" not in str(caught.value)
