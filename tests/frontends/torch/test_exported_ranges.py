"""Sizes that an exported program refuses are answered with a warning that names the bounds and the cure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dippm
from dippm.frontends.torch.exported_ranges import SizeRange, find_ranges

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

Dim = torch.export.Dim


class Texts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table(tokens).mean(1)


def told(graph: Any) -> list[str]:
    return [text for text in graph.warnings if "exported" in text]


@pytest.mark.parametrize(
    ("dim", "hint", "words"),
    [
        (Dim("batch", min=2, max=64), 128, "batches of at most 64"),
        (Dim("batch", max=64), None, "batches of at most 64"),
        (Dim("batch", min=4, max=64), 1, "batches of 4 to 64"),
        (Dim("batch", min=4, max=64), 8, "batches of 4 to 64"),  # 1 may be among the batches that are asked for
        (Dim("batch", min=4), 2, "batches of at least 4"),
        (2 * Dim("half", max=64), 130, "batches of at most 128"),
    ],
)
@pytest.mark.parametrize("is_file", [True, False])
def test_batches_beyond_the_bounds_are_told(
    tmp_path: Path, dim: Any, hint: int | None, words: str, is_file: bool, export: Callable[..., Path]
) -> None:
    options: dict[str, Any] = {"dynamic_shapes": ({0: dim},)}
    if is_file:
        model: Any = export(nn.Linear(8, 8), tmp_path / "m.pt2", torch.zeros(8, 8), **options)
    else:
        model = torch.export.export(nn.Linear(8, 8), (torch.zeros(8, 8),), **options)
    graph = dippm.load(model, batch_hint=hint)
    assert graph.fixed_batch is None
    (warning,) = told(graph)
    assert f"was exported for {words}, and PyTorch refuses to run it at others" in warning
    assert warning.endswith("exported with a wider torch.export.Dim.")


@pytest.mark.parametrize(
    ("dim", "hint"),
    [
        (Dim("batch"), None),
        (Dim("batch", min=2), 1),  # which PyTorch runs at 1
        (Dim("batch", min=1, max=64), 64),
        (Dim("batch", max=64), 1),
        (Dim.AUTO, None),
        (2 * Dim("half", max=64), 128),
        (None, 128),
    ],
)
def test_batches_within_them_are_not(tmp_path: Path, dim: Any, hint: int | None, export: Callable[..., Path]) -> None:
    options: dict[str, Any] = {} if dim is None else {"dynamic_shapes": ({0: dim},)}
    path = export(nn.Linear(8, 8), tmp_path / "m.pt2", torch.zeros(8, 8), **options)
    assert told(dippm.load(path, batch_hint=hint)) == []


@pytest.mark.parametrize(("length", "is_told"), [(3, True), (4, False), (512, False), (600, True)])
def test_other_sizes_beyond_their_bounds_are_told(
    tmp_path: Path, length: int, is_told: bool, export: Callable[..., Path]
) -> None:
    dims = {0: Dim("batch"), 1: Dim("length", min=4, max=512)}
    example = torch.zeros(2, 16, dtype=torch.int64)
    path = export(Texts(), tmp_path / "m.pt2", example, dynamic_shapes=(dims,))
    prediction = dippm.predict(path, input=str(length), batch=8)
    words = f"exported for a size of 4 to 512 in dimension 1 of 'tokens', and PyTorch refuses to run it at {length}: "
    assert [words in text for text in told(prediction)] == [True] * is_told


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_pytorch_refuses_is_what_is_told() -> None:
    program = torch.export.export(
        nn.Linear(8, 8), (torch.zeros(8, 8),), dynamic_shapes=({0: Dim("batch", min=4, max=64)},)
    )
    run = program.module()
    for batch in (1, 3, 65):
        assert told(dippm.predict(program, batch=batch))
        with pytest.raises((AssertionError, RuntimeError), match=r"Guard failed|Expected input"):
            run(torch.zeros(batch, 8))
    for batch in (4, 64):
        assert run(torch.zeros(batch, 8)).shape == (batch, 8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Symbol('s77', positive=True, integer=True)", SizeRange(least=4, most=64)),
        ("s77", SizeRange(least=4, most=64)),
        ("Mul(Integer(2), Symbol('s77', positive=True, integer=True))", SizeRange(least=8, most=128)),
        ("2*s77", SizeRange(least=8, most=128)),
        ("Add(Symbol('s77', positive=True, integer=True), Integer(1))", None),
        ("Symbol('s1', positive=True, integer=True)", None),
        ("s2", None),
    ],
)
def test_bounds_are_found_by_the_symbol(text: str, expected: SizeRange | None) -> None:
    sizes = [{"as_expr": {"expr_str": text, "hint": {"as_int": 4}}}, {"as_int": 8}]
    program = {
        "graph_module": {"graph": {"tensor_values": {"x": {"sizes": sizes}}}},
        "range_constraints": {"s77": {"min_val": 4, "max_val": 64}, "s1": {"min_val": 0, "max_val": None}},
    }
    assert find_ranges(program, "x") == [expected, None]
    del program["range_constraints"]
    assert find_ranges(program, "x") == [None, None]
