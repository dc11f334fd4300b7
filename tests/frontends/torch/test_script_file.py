"""TorchScript: programs that run on loading, and those that open files however they are written."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dippm.errors import ModelReadError  # noqa: E402
from dippm.frontends.inputs import parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_torch_file  # noqa: E402
from dippm.frontends.torch.dtypes import from_torch_dtype  # noqa: E402
from dippm.frontends.torch.plans import plan_for  # noqa: E402
from dippm.frontends.torch.script_file import _LoadGuard, _opens_files  # noqa: E402
from dippm.graph import Dim, DType, Graph  # noqa: E402

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


LATE = torch.arange(10_000, dtype=torch.float64)[5]


class TimesNumber(nn.Module):
    """Integers and numbers: what PyTorch makes of them is of 32 bits."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 2.5, x / 2.5, x + 2.5, x - 2.5, 2.5 - x, x * 2


class CallsTraced(nn.Module):
    """A function that was traced by itself."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.scale = torch.jit.trace(lambda x: x * 2.5, torch.zeros(3, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(x)


class Sinusoids(nn.Module):
    """The embedding of a diffusion model's time."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frequencies = torch.exp(-math.log(1e4) * torch.arange(4, device=x.device) / 4)
        angles = x[:, None].float() * frequencies[None]
        return self.head(torch.cat([angles.sin(), angles.cos()], -1))


class Rotary(nn.Module):
    """Rotated queries, and one module within another that has numbers too."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = TimesNumber()
        self.head = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = self.turn(torch.arange(x.shape[1]))[0][:, None] * torch.exp(torch.arange(4) * -0.5)
        angles = torch.cat([angles, angles], -1)
        first, second = self.head(x).chunk(2, -1)
        return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


class SinusoidTransformer(nn.Module):
    """Tokens whose places are told by sines and cosines."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, 8)
        self.heads = nn.Linear(8, 24)
        self.head = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[1])[:, None] * torch.exp(torch.arange(0, 8, 2) * -0.3)
        places = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        x = self.tokens(x) * math.sqrt(8) + places
        queries, keys, values = self.heads(x).chunk(3, -1)
        return self.head(x + nn.functional.scaled_dot_product_attention(queries, keys, values))


class TimesBuffer(nn.Module):
    """A number that the model keeps in 64 bits itself, and one in a tensor with a dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.5, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * self.scale, x * torch.full((1,), 2.5, dtype=torch.float64)


class TimesElement(nn.Module):
    """An element of a tensor whose values stay on disk."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double() * LATE


def run_and_read(path: Path, example: torch.Tensor) -> tuple[list[str], list[str]]:
    """The element types of what a program gives when PyTorch runs it, and of what its graph gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = torch.jit.load(path)(example)
    found = [from_torch_dtype(each.dtype).value for each in (given if isinstance(given, tuple) else (given,))]
    size = "x".join(map(str, example.shape[1:]))
    element = "" if example.is_floating_point() else ":int64"
    graph = read_torch_file(path, input=parse_input_shapes(size + element))
    return found, [graph.tensors[index].dtype.value for index in graph.outputs]


@pytest.mark.parametrize(
    ("module", "shape", "types"),
    [
        (TimesNumber, (2, 4), ["float32"] * 5 + ["int64"]),
        (CallsTraced, (2, 4), ["float32"]),
        (Sinusoids, (2,), ["float32"]),
        (Rotary, (2, 4, 8), ["float32"]),
        (SinusoidTransformer, (2, 4), ["float32"]),
        (TimesBuffer, (2, 4), ["float64", "float64"]),
        (TimesElement, (2, 4), ["float64"]),
    ],
)
def test_a_trace_computes_in_the_types_that_pytorch_runs_it_in(
    tmp_path: Path, module: type[nn.Module], shape: tuple[int, ...], types: list[str], save_script: Callable[..., Path]
) -> None:
    example = torch.zeros(shape, dtype=torch.float32 if module is Rotary else torch.int64)
    path = save_script(module().eval(), tmp_path / "m.pt", example=example)
    assert run_and_read(path, example) == (types, types)


def test_a_trace_computes_on_no_more_in_64_bits_than_its_module_does(
    tmp_path: Path, save_script: Callable[..., Path], read: Callable[..., Graph]
) -> None:
    module = Sinusoids().eval()
    path = save_script(module, tmp_path / "m.pt", example=torch.zeros(2, dtype=torch.int64))
    graph = read_torch_file(path, input=parse_input_shapes(":int64"))

    def computed(graph: Graph) -> list[tuple[str, DType]]:
        outputs = [(node.source_op, graph.tensors[node.outputs[0]].dtype) for node in graph.nodes]
        return [each for each in outputs if each[0] != "aten.slice"]  # which a trace writes out

    assert computed(graph) == computed(read(module, ":int64"))


@pytest.mark.parametrize(
    ("module", "shape", "types"), [(Sinusoids, (2,), ["float32"]), (TimesBuffer, (2, 4), ["float64"] * 2)]
)
def test_a_scripted_program_computes_in_the_types_that_pytorch_runs_it_in(
    tmp_path: Path, module: type[nn.Module], shape: tuple[int, ...], types: list[str], save_script: Callable[..., Path]
) -> None:
    path = save_script(module(), tmp_path / "m.pt")
    assert run_and_read(path, torch.zeros(shape, dtype=torch.int64)) == (types, types)
