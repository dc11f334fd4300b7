"""TorchScript: programs that run on loading, and those that open files however they are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.errors import ModelReadError  # noqa: E402
from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_torch_file  # noqa: E402
from dippm.frontends.torch.plans import plan_for  # noqa: E402
from dippm.frontends.torch.script_file import _LoadGuard, _opens_files  # noqa: E402
from dippm.graph import Dim  # noqa: E402

torch = pytest.importorskip("torch")

VECTOR = parse_input_shapes("4")


Rewrite = Callable[[Path, Callable[[str, bytes], bytes]], None]


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


def replace_in_code(rewrite: Rewrite, path: Path, old: str, new: str) -> None:
    found = []

    def change(name: str, content: bytes) -> bytes:
        if "/code/" in name and name.endswith(".py") and old.encode() in content:
            found.append(name)
            return content.replace(old.encode(), new.encode())
        return content

    rewrite(path, change)
    assert found


def test_code_that_runs_on_loading_is_read(tmp_path: Path, save_script: Callable[..., Path]) -> None:
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
def test_no_layout_hides_a_file_operator(
    tmp_path: Path,
    call: str,
    save_script: Callable[..., Path],
    rewrite: Callable[[Path, Callable[[str, bytes], bytes]], None],
) -> None:
    victim = tmp_path / "victim"
    path = save_script(Stateful(), tmp_path / "m.pt")
    replace_in_code(rewrite, path, "torch.neg((state)[0])", call.replace("{file}", f'"{victim}"'))
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(path, input=VECTOR)
    assert caught.value.code == "torch.script_refused"
    assert not victim.exists()


@pytest.mark.parametrize("place", ["torch.neg((state)[0])", "torch.mul(x, scale)"])
def test_the_guards_hold_without_the_look_at_the_text(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    save_script: Callable[..., Path],
    rewrite: Callable[[Path, Callable[[str, bytes], bytes]], None],
) -> None:
    monkeypatch.setattr("dippm.frontends.torch.script_file._opens_files", lambda _code: False)
    victim = tmp_path / "victim"
    path = save_script(Stateful(), tmp_path / "m.pt")
    replace_in_code(rewrite, path, place, f'torch. from_file("{victim}", True, 4)')
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


def test_messages_are_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert plan_for(torch.ops.aten._print.default).is_skipped
    with _LoadGuard():
        torch.ops.aten._print("a message")
    assert capfd.readouterr().out == ""


def test_script_constants_keep_their_values(tmp_path: Path, save_script: Callable[..., Path]) -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            half = x.shape[1] // 2
            return x[:, :half].reshape(x.shape[0], half // 2, 2)

    path = save_script(Halves(), tmp_path / "m.pt", example=torch.zeros(1, 8))
    graph = read_torch_file(path, input=parse_input_shapes("8"))
    assert [graph.tensors[i].shape for i in graph.outputs] == [(Dim(1, 0), Dim(0, 2), Dim(0, 2))]
