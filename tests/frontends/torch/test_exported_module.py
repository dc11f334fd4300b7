"""Exported programs: what they may call, and damaged ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.costs.conditions import Mode  # noqa: E402
from dippm.costs.training_step.training_graph import Phase, TrainingSettings, make_training_graph  # noqa: E402
from dippm.errors import (  # noqa: E402
    DippmError,
    ModelReadError,
    UnsupportedError,
)
from dippm.frontends.inputs import InputShapes  # noqa: E402
from dippm.frontends.torch import read_torch_file  # noqa: E402
from dippm.graph import Graph, TensorRole  # noqa: E402

torch = pytest.importorskip("torch")


def test_an_exported_program_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], export_call: Callable[..., Path]
) -> None:
    path = export_call(tmp_path, "torch.ops.aten._print.default", [{"as_string": "a message"}])
    capfd.readouterr()
    graph = read_torch_file(path, input=InputShapes())
    assert "a message" not in capfd.readouterr().out
    assert [node.source_op for node in graph.nodes] == ["aten.relu"]


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("_operator.pow", [{"as_int": 10}, {"as_int": 10**9}]),
        ("_operator.mul", [{"as_int": 2**200}, {"as_int": 2}]),
        ("_operator.mul", [{"as_ints": [1]}, {"as_int": 10**9}]),
        ("_operator.mod", [{"as_string": "%1000000000d"}, {"as_int": 1}]),
    ],
)
def test_arithmetic_is_bounded(
    tmp_path: Path, target: str, arguments: list[dict[str, Any]], export_call: Callable[..., Path]
) -> None:
    path = export_call(tmp_path, target, arguments)
    start = time.monotonic()
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(path, input=InputShapes())
    assert caught.value.code == "torch.export_invalid"
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("target", ["c10d.barrier.default", "debugprims.load_tensor.default"])
def test_an_exported_program_stays_in_its_process(
    tmp_path: Path, target: str, export_call: Callable[..., Path]
) -> None:
    path = export_call(tmp_path, f"torch.ops.{target}", [])
    with pytest.raises((ModelReadError, UnsupportedError)) as caught:
        read_torch_file(path, input=InputShapes())
    assert caught.value.code in {"torch.file_operator", "torch.export_unsupported"}


NOTHING = InputShapes()


@pytest.mark.parametrize(
    "target", ["torch.os.system", "torch.hub.load", "torch.load", "_operator.methodcaller", "builtins.eval", "math.x.y"]
)
def test_a_program_calls_operators_only(
    tmp_path: Path,
    target: str,
    export: Callable[..., Path],
    rewrite_program: Callable[[Path, Callable[[dict[str, Any]], Any]], None],
) -> None:
    path = export(nn.ReLU(), tmp_path / "m.pt2", torch.zeros(1, 4))
    rewrite_program(path, lambda program: program["graph_module"]["graph"]["nodes"][0].update(target=target))
    with pytest.raises(DippmError) as caught:
        read_torch_file(path, input=NOTHING)
    assert isinstance(caught.value.__cause__ or caught.value, (UnsupportedError, DippmError))
    assert target in str(caught.value)


def test_a_program_opens_no_files(
    tmp_path: Path,
    export: Callable[..., Path],
    rewrite_program: Callable[[Path, Callable[[dict[str, Any]], Any]], None],
) -> None:
    path = export(nn.ReLU(), tmp_path / "m.pt2", torch.zeros(1, 4))
    victim = tmp_path / "victim"

    def change(program: dict[str, Any]) -> None:
        node = program["graph_module"]["graph"]["nodes"][0]
        node["target"] = "torch.ops.aten.from_file.default"
        node["inputs"] = [
            {"name": "filename", "arg": {"as_string": str(victim)}, "kind": 1},
            {"name": "shared", "arg": {"as_bool": True}, "kind": 1},
            {"name": "size", "arg": {"as_int": 10}, "kind": 1},
        ]

    rewrite_program(path, change)
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(path, input=NOTHING)
    assert caught.value.code == "torch.file_operator"
    assert not victim.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda program: program.pop("graph_module"),
        lambda program: program["graph_module"].pop("signature"),
        lambda program: program["graph_module"]["graph"].update(tensor_values={}),
        lambda program: program["graph_module"]["graph"].update(nodes=[{"target": 3}]),
        lambda program: program["graph_module"]["graph"]["nodes"][0].update(inputs=[{"name": "self"}]),
    ],
)
def test_damaged_programs(
    tmp_path: Path,
    change: Callable[[dict[str, Any]], None],
    export: Callable[..., Path],
    rewrite_program: Callable[[Path, Callable[[dict[str, Any]], Any]], None],
) -> None:
    path = export(nn.Linear(4, 4), tmp_path / "m.pt2", torch.zeros(1, 4))
    rewrite_program(path, change)
    with pytest.raises(DippmError):
        read_torch_file(path, input=NOTHING)


def test_complex_weights_are_trained_unless_they_are_frozen(tmp_path: Path) -> None:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(8, 4, dtype=torch.complex64))
            self.fixed = nn.Parameter(torch.zeros(4, dtype=torch.complex64), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.abs(torch.fft.fft(x) @ self.weight + self.fixed)

    path = tmp_path / "spectral.pt2"
    torch.export.save(torch.export.export(Spectral(), (torch.zeros(2, 8),)), path)
    graph = read_torch_file(path, input=InputShapes(), mode=Mode.TRAINING)
    roles = {tensor.name: tensor.role for tensor in graph.tensors}
    assert (roles["weight"], roles["fixed"]) == (TensorRole.PARAMETER, TensorRole.BUFFER)


class _Kept(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x * torch.tensor([1.0, 2.0] * 4))[:, torch.tensor([0, 3, 2])]


class _Heard(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.stft(x, 64, 16, window=self.window, return_complex=True)
        return torch.istft(spectrum * 2, 64, 16, window=self.window)


@pytest.mark.parametrize(("kind", "width"), [(_Kept, 8), (_Heard, 512)])
def test_a_program_has_the_nodes_of_its_module(
    tmp_path: Path, kind: type[nn.Module], width: int, export: Callable[..., Path], read: Callable[..., Graph]
) -> None:
    program = read_torch_file(export(kind(), tmp_path / "m.pt2", torch.zeros(2, width)), input=NOTHING)
    module = read(kind(), str(width))
    assert [(node.kind, node.source_op) for node in program.nodes] == [
        (node.kind, node.source_op) for node in module.nodes
    ]
    assert not program.unsupported_ops
    # What a window holds only the module tells.
    assert [("checks of its values" in warning) for warning in program.warnings] == [True] * (kind is _Heard)
    assert module.warnings == ()


def test_parts_without_gradients_stay_so(tmp_path: Path) -> None:
    class Teacher(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fixed, self.trained = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = self.fixed(x)
                with torch.enable_grad():
                    y = y * self.trained.bias[0]
            return self.trained(y)

    path = tmp_path / "teacher.pt2"
    torch.export.save(torch.export.export(Teacher(), (torch.zeros(2, 8),)), path)
    graph = read_torch_file(path, input=InputShapes(), mode=Mode.TRAINING)
    step = make_training_graph(graph, TrainingSettings())
    read_backward = {
        graph.tensors[index].name
        for node, phase in zip(step.graph.nodes, step.phase, strict=True)
        if phase == Phase.OPTIMIZER
        for index in node.inputs
        if 0 <= index < len(graph.tensors) and graph.tensors[index].role is TensorRole.PARAMETER
    }
    assert read_backward == {"trained.weight", "trained.bias"}
