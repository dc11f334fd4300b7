"""Files made to do harm: TorchScript that opens files, archives that unpack without end, programs that never end."""

from __future__ import annotations

import json
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.errors import ModelReadError, UnsupportedError  # noqa: E402
from dippm.frontends.inputs import InputShapes, parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_torch_file, recorder  # noqa: E402
from dippm.frontends.torch.plans import plan_for  # noqa: E402
from dippm.frontends.torch.script_file import _LoadGuard, _opens_files  # noqa: E402

VECTOR = parse_input_shapes("4")


class Stateful(nn.Module):
    """A module whose file holds code that runs while it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(4)
        self.training = False

    @torch.jit.export
    def __getstate__(self) -> tuple[torch.Tensor, bool]:
        return self.scale, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]) -> None:
        self.scale = torch.neg(state[0])
        self.training = state[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Endless(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while x.dim() == 2:
            x = x + 1
        return x


def save_script(module: nn.Module, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(module.eval()), path)
    return path


def rewrite(path: Path, change: Callable[[str, bytes], bytes]) -> None:
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, change(name, content))


def replace_in_code(path: Path, old: str, new: str) -> None:
    found = []

    def change(name: str, content: bytes) -> bytes:
        if "/code/" in name and name.endswith(".py") and old.encode() in content:
            found.append(name)
            return content.replace(old.encode(), new.encode())
        return content

    rewrite(path, change)
    assert found


def test_code_that_runs_on_loading_is_read(tmp_path: Path) -> None:
    graph = read_torch_file(save_script(Stateful(), tmp_path / "m.pt"), input=VECTOR)
    assert [node.source_op for node in graph.nodes] == ["aten.mul"]


HIDDEN = [
    "torch. from_file({file}, True, 4)",
    "torch .from_file({file}, True, 4)",
    "ops.aten. from_file({file}, True, 4)",
    "torch.\\\n      from_file({file}, True, 4)",
    'getattr(torch, "from_file")({file}, True, 4)',
    'getattr(torch, "from_" "file")({file}, True, 4)',
    'getattr(torch, "from\\137file")({file}, True, 4)',
    'getattr(getattr(ops, "aten"), "from_file")({file}, True, 4)',
    'getattr(getattr(ops, "aten"), "from_" "file")({file}, True, 4)',
]


@pytest.mark.parametrize("call", HIDDEN)
def test_no_layout_hides_a_file_operator(tmp_path: Path, call: str) -> None:
    victim = tmp_path / "victim"
    path = save_script(Stateful(), tmp_path / "m.pt")
    replace_in_code(path, "torch.neg((state)[0])", call.replace("{file}", f'"{victim}"'))
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(path, input=VECTOR)
    assert caught.value.code == "torch.script_refused"
    assert not victim.exists()


@pytest.mark.parametrize("place", ["torch.neg((state)[0])", "torch.mul(x, scale)"])
def test_the_guards_hold_without_the_look_at_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr("dippm.frontends.torch.script_file._opens_files", lambda _code: False)
    victim = tmp_path / "victim"
    path = save_script(Stateful(), tmp_path / "m.pt")
    replace_in_code(path, place, f'torch. from_file("{victim}", True, 4)')
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(path, input=VECTOR)
    assert caught.value.code == "torch.file_operator"
    assert not victim.exists()


@pytest.mark.parametrize(
    "code",
    [
        b'getattr(self.layers, "0")',
        b'_1 = getattr(getattr(self.layers, "0").block, "12")',
        b"save : List[int]",
        b'ops.prim.RaiseException("cannot save, \\n it is getting late")',
    ],
)
def test_what_pytorch_writes_is_not_refused(code: bytes) -> None:
    assert not _opens_files(code)


@pytest.mark.parametrize("code", [b"ops.aten.save(x, y)", b"torch. # here\n save(x, y)", b'getattr(torch, "save")'])
def test_writing_is_refused(code: bytes) -> None:
    assert _opens_files(code)


def test_many_small_bombs_are_one_bomb(tmp_path: Path) -> None:
    path = save_script(nn.Linear(4, 4), tmp_path / "m.pt")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        for index in range(10):
            archive.writestr(f"m/code/__torch__/{index}.py", b" " * 2**23)
    start = time.monotonic()
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(path, input=VECTOR)
    assert caught.value.code == "torch.archive_bomb"
    assert time.monotonic() - start < 10


def test_entries_that_no_program_needs_are_not_unpacked(tmp_path: Path) -> None:
    path = save_script(nn.Linear(4, 4), tmp_path / "m.pt")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        for index in range(10):
            archive.writestr(f"m/extra/{index}", b"\0" * 2**23)
            archive.writestr(f"m/data/9{index}", b"\0" * 2**23)
    assert read_torch_file(path, input=VECTOR).parameter_count == 20


def test_a_loop_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_OPERATOR_LIMIT", 1000)
    with pytest.raises(UnsupportedError) as caught:
        read_torch_file(save_script(Endless(), tmp_path / "m.pt"), input=VECTOR)
    assert caught.value.code == "torch.too_many_operators"


def test_messages_are_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert plan_for(torch.ops.aten._print.default).is_skipped
    with _LoadGuard():
        torch.ops.aten._print("a message")
    assert capfd.readouterr().out == ""


def test_an_exported_program_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = export(tmp_path, "torch.ops.aten._print.default", [{"as_string": "a message"}])
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
def test_arithmetic_is_bounded(tmp_path: Path, target: str, arguments: list[dict[str, Any]]) -> None:
    path = export(tmp_path, target, arguments)
    start = time.monotonic()
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(path, input=InputShapes())
    assert caught.value.code == "torch.export_invalid"
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("target", ["c10d.barrier.default", "debugprims.load_tensor.default"])
def test_an_exported_program_stays_in_its_process(tmp_path: Path, target: str) -> None:
    path = export(tmp_path, f"torch.ops.{target}", [])
    with pytest.raises((ModelReadError, UnsupportedError)) as caught:
        read_torch_file(path, input=InputShapes())
    assert caught.value.code in {"torch.file_operator", "torch.export_unsupported"}


def export(folder: Path, target: str, arguments: list[dict[str, Any]]) -> Path:
    """An exported ReLU before which an operator of the given name runs."""
    path = folder / "m.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(nn.ReLU().eval(), (torch.zeros(1, 4),)), path)

    def change(name: str, content: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return content
        program = json.loads(content)
        node = {
            "target": target,
            "inputs": [{"name": "", "arg": item, "kind": 1} for item in arguments],
            "outputs": [],
            "metadata": {},
        }
        program["graph_module"]["graph"]["nodes"].insert(0, node)
        return json.dumps(program).encode()

    rewrite(path, change)
    return path
