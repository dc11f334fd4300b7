"""Exported programs in memory: read as from their files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dippm.costs.conditions import Mode  # noqa: E402
from dippm.errors import ModelReadError, UsageError  # noqa: E402
from dippm.frontends.inputs import InputShapes, parse_input_shapes  # noqa: E402
from dippm.frontends.open_model import open_model  # noqa: E402
from dippm.frontends.torch import read_exported_object, read_torch_file  # noqa: E402

NOTHING = InputShapes()


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(tokens))


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout()).eval()


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(
    ("module", "example", "is_open"),
    [
        (Tied(), torch.zeros(1, 12, dtype=torch.int64), False),
        (convolution(), torch.zeros(2, 3, 8, 8), True),
        (convolution().bfloat16(), torch.zeros(3, 3, 8, 8, dtype=torch.bfloat16), False),
    ],
)
def test_a_program_is_read_as_its_file_is(
    tmp_path: Path, module: nn.Module, example: torch.Tensor, is_open: bool, mode: Mode, export: Callable[..., Path]
) -> None:
    shapes: Any = ({0: torch.export.Dim("batch")},) if is_open else None
    program = torch.export.export(module, (example,), dynamic_shapes=shapes)
    path = export(module, tmp_path / "m.pt2", example, dynamic_shapes=shapes)
    graph = open_model(program, input=NOTHING, mode=mode)
    filed = read_torch_file(path, input=NOTHING, mode=mode)
    warnings = tuple(warning.replace(str(path), "ExportedProgram") for warning in filed.warnings)
    assert graph == replace(filed, source="ExportedProgram", warnings=warnings)
    assert graph.fixed_batch is None


def test_weights_that_are_one_count_once() -> None:
    program = torch.export.export(Tied(), (torch.zeros(1, 12, dtype=torch.int64),))
    assert read_exported_object(program, input=NOTHING).parameter_count == 800


def test_weights_need_no_values() -> None:
    module = nn.Linear(64, 2**40, device="meta")
    program = torch.export.export(module, (torch.zeros(1, 64, device="meta"),))
    assert read_exported_object(program, input=NOTHING).parameter_count == 65 * 2**40


def test_inputs_that_do_not_fit_are_told() -> None:
    program = torch.export.export(nn.Linear(8, 2), (torch.zeros(1, 8),))
    with pytest.raises(UsageError, match="'ExportedProgram' takes 1 inputs"):
        read_exported_object(program, input=parse_input_shapes([(8,), (8,)]))


def test_what_cannot_be_written_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._export.serde.serialize import GraphModuleSerializer, SerializeError

    def refuse(self: object, module: object) -> None:
        raise SerializeError("no such thing")

    monkeypatch.setattr(GraphModuleSerializer, "serialize", refuse)
    program = torch.export.export(nn.Linear(8, 2), (torch.zeros(1, 8),))
    with pytest.raises(ModelReadError, match="no such thing") as caught:
        read_exported_object(program, input=NOTHING)
    assert caught.value.code == "torch.export_invalid"
