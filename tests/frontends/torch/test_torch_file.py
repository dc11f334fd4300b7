"""Files of every kind that PyTorch writes, and files that only look like them."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from dippm.errors import DippmError, ModelReadError, UsageError  # noqa: E402
from dippm.frontends.inputs import InputShapes, parse_input_shapes  # noqa: E402
from dippm.frontends.torch import read_module, read_torch_file  # noqa: E402
from dippm.graph import Dim, Graph, OpKind, TensorRole  # noqa: E402

IMAGE = parse_input_shapes("3,16,16")


NOTHING = InputShapes()


LEGACY_OPTIONS = {"_use_new_zipfile_serialization": False}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3, padding=1)
        self.norm = nn.BatchNorm2d(64)
        self.head = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        return self.head(x.flatten(2).transpose(1, 2)).mean(1)


def save_export(module: nn.Module, path: Path, *examples: torch.Tensor, is_dynamic: bool = False) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shapes = tuple({0: torch.export.Dim("batch", min=1, max=512)} for _ in examples) if is_dynamic else None
        torch.export.save(torch.export.export(module.eval(), examples, dynamic_shapes=shapes), path)
    return path


def kinds(graph: Graph) -> list[OpKind]:
    return [node.kind for node in graph.nodes if node.kind is not OpKind.VIEW]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, save_script: Callable[..., Path]) -> Path:
    path = tmp_path_factory.mktemp("files")
    net = Net().eval()
    save_script(net, path / "script.pt")
    save_script(net, path / "traced.bin", example=torch.zeros(1, 3, 16, 16))
    save_export(net, path / "fixed.pt2", torch.zeros(1, 3, 16, 16))
    save_export(net, path / "fixed3.pt2", torch.zeros(3, 3, 16, 16))
    save_export(net, path / "open.pt2", torch.zeros(2, 3, 16, 16), is_dynamic=True)
    torch.save(net, path / "pickle.pt")
    torch.save(net, path / "legacy.pt", **LEGACY_OPTIONS)
    torch.save({"model": net, "epoch": 3}, path / "checkpoint_module.pt")
    torch.save(net.state_dict(), path / "weights.pt")
    torch.save({"state_dict": net.state_dict(), "epoch": 3, "lr": 0.1}, path / "checkpoint.pt")
    torch.save(net.state_dict(), path / "weights_legacy.pt", **LEGACY_OPTIONS)
    return path


@pytest.fixture(scope="module")
def expected() -> Graph:
    return read_module(Net(), input=IMAGE)


FILES = [
    "script.pt",
    "traced.bin",
    "fixed.pt2",
    "fixed3.pt2",
    "open.pt2",
    "pickle.pt",
    "legacy.pt",
    "checkpoint_module.pt",
]


@pytest.mark.parametrize("name", FILES)
def test_every_form_gives_the_modules_graph(folder: Path, expected: Graph, name: str) -> None:
    graph = read_torch_file(folder / name, input=IMAGE, trust=True)
    assert graph.fixed_batch is None, graph.fixed_batch_reason
    assert kinds(graph) == kinds(expected)
    assert graph.parameter_count == expected.parameter_count
    assert [graph.tensors[i].shape for i in graph.outputs] == [(Dim(1, 0), Dim(0, 64))]
    assert graph.source == str(folder / name)


@pytest.mark.parametrize("name", ["fixed.pt2", "open.pt2"])
def test_an_export_knows_its_shapes_and_scopes(folder: Path, name: str) -> None:
    graph = read_torch_file(folder / name, input=NOTHING)
    assert graph.tensors[graph.inputs[0]].shape == (Dim(1, 0), Dim(0, 3), Dim(0, 16), Dim(0, 16))
    assert graph.nodes[0].scope == "conv"
    assert {node.scope for node in graph.nodes} >= {"conv", "norm", "head"}


def test_large_weights_are_not_read(folder: Path, tmp_path: Path) -> None:
    for name in ("fixed.pt2", "script.pt"):
        stripped = tmp_path / name
        with zipfile.ZipFile(folder / name) as source, zipfile.ZipFile(stripped, "w") as target:
            for entry in source.namelist():
                is_large = "/data/" in entry and source.getinfo(entry).file_size > 8192 and not entry.endswith("json")
                target.writestr(entry, b"" if is_large else source.read(entry))
        assert kinds(read_torch_file(stripped, input=IMAGE)) == kinds(read_torch_file(folder / name, input=IMAGE))


@pytest.mark.parametrize("name", ["pickle.pt", "legacy.pt", "checkpoint_module.pt"])
def test_pickles_are_refused_without_trust(folder: Path, name: str) -> None:
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(folder / name, input=IMAGE)
    assert caught.value.code == "torch.pickle_refused"
    assert "trust=True" in str(caught.value)
    assert "--trust-pickle" in str(caught.value)
    assert "runs code" in str(caught.value)


class Bomb:
    fuse: Path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.write_text, (self.fuse, "gone off")


@pytest.mark.parametrize("writer", ["plain", "zip", "legacy", "protocol4"])
def test_refusing_runs_no_code(tmp_path: Path, writer: str) -> None:
    bomb, path = Bomb(), tmp_path / "m.pt"
    bomb.fuse = tmp_path / "boom"
    match writer:
        case "plain":
            path.write_bytes(pickle.dumps(bomb, protocol=2))
        case "protocol4":
            path.write_bytes(pickle.dumps({"weight": bomb}, protocol=4))
        case "zip":
            torch.save({"weight": bomb}, path)
        case "legacy":
            torch.save({"weight": bomb}, path, **LEGACY_OPTIONS)
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(path, input=IMAGE)
    assert caught.value.code == "torch.pickle_refused"
    assert not bomb.fuse.exists()


@pytest.mark.parametrize("name", ["weights.pt", "checkpoint.pt", "weights_legacy.pt"])
@pytest.mark.parametrize("trust", [False, True])
def test_weights_without_a_model(folder: Path, name: str, trust: bool) -> None:
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(folder / name, input=IMAGE, trust=trust)
    assert caught.value.code == "torch.state_dict"
    assert caught.value.cure


def test_safetensors_are_weights_too(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(path, input=IMAGE)
    assert caught.value.code == "torch.state_dict"


def test_shapes_are_needed_where_the_file_does_not_fix_them(folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_torch_file(folder / "script.pt", input=NOTHING)
    assert caught.value.code == "input.shape_needed"


@pytest.mark.parametrize("name", ["script.pt", "fixed.pt2", "open.pt2"])
def test_wrong_shape(folder: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_torch_file(folder / name, input=parse_input_shapes("4,16,16"))
    assert caught.value.code == "input.shape_wrong"


@pytest.mark.parametrize("name", ["script.pt", "fixed.pt2"])
def test_wrong_name_of_a_files_input(folder: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"has no input 'y'\. Its inputs are: x\. The nearest is 'x'") as caught:
        read_torch_file(folder / name, input=parse_input_shapes({"y": (3, 16, 16)}))
    assert caught.value.code == "input.name_unknown"


def test_too_many_inputs_of_an_export(folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_torch_file(folder / "fixed.pt2", input=parse_input_shapes(["3,16,16", "3"]))
    assert caught.value.code == "input.name_unknown"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "model.empty"),
        (b"PK\x03\x04 and then nothing", "model.truncated"),
        (b"\x80\x02}q\x00X\x05\x00", "model.truncated"),
        (b"\x08\x07\x12\x07pytorch: an ONNX file", "torch.not_recognised"),
        (b"just text", "torch.not_recognised"),
        (b"\0" * 100, "torch.not_recognised"),
    ],
)
def test_damaged_and_foreign_files(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(path, input=IMAGE)
    assert caught.value.code == code


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.pt", tmp_path):
        with pytest.raises(ModelReadError) as caught:
            read_torch_file(path, input=IMAGE)
        assert caught.value.code == "model.not_found"


@pytest.mark.parametrize("name", ["script.pt", "fixed.pt2", "pickle.pt", "legacy.pt", "weights.pt"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.999])
def test_cut_short_is_an_error_or_an_answer(folder: Path, tmp_path: Path, name: str, share: float) -> None:
    content = (folder / name).read_bytes()
    path = tmp_path / name
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(DippmError):
        read_torch_file(path, input=IMAGE, trust=False)


def test_a_zip_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(path, input=IMAGE)
    assert caught.value.code == "torch.not_recognised"


def test_script_that_touches_files_is_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    with zipfile.ZipFile(folder / "script.pt") as source, zipfile.ZipFile(path, "w") as target:
        for entry in source.namelist():
            content = source.read(entry)
            if "/code/" in entry and entry.endswith(".py"):
                content += b"\n  torch.save(x, '/tmp/x')\n"
            target.writestr(entry, content)
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(path, input=IMAGE)
    assert caught.value.code == "torch.script_refused"


def test_pickle_of_a_class_that_is_not_here(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", b"\x80\x02cno_such_package.models\nNet\n)\x81.")
        archive.writestr("m/version", b"3\n")
        archive.writestr("m/byteorder", b"little")
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(path, input=IMAGE, trust=True)
    assert caught.value.code == "torch.class_missing"
    assert "no_such_package" in str(caught.value)


SOURCE = """
from torch import nn


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)
"""

SAVE = """
import torch
from mynets import Plain

torch.save(Plain().eval(), "plain.pt")
"""


def run(folder: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_the_cure_of_a_class_that_is_not_here_works_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "mynets.py").write_text(SOURCE)
    saved = run(tmp_path, "-c", SAVE)
    assert saved.returncode == 0, saved.stderr
    # -P: as a console script, which has not the current folder on its path.
    call = ["-P", "-m", "dippm", "predict", "plain.pt", "--trust-pickle", "--input", "4"]
    refused = run(tmp_path, *call)
    assert refused.returncode == 3
    assert "torch.class_missing" in refused.stderr
    assert "PYTHONPATH=. dippm predict" in refused.stderr
    answered = run(tmp_path, *call, path=".")
    assert answered.returncode == 0, answered.stderr


def test_a_class_of_a_script_is_not_cured_by_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(Net):
        pass

    Own.__module__, Own.__qualname__ = "__main__", "Own"
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "Own", Own, raising=False)
    torch.save(Own(), tmp_path / "m.pt")
    monkeypatch.delattr(main, "Own")
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(tmp_path / "m.pt", input=IMAGE, trust=True)
    assert caught.value.code == "torch.class_missing"
    assert "__main__" in (caught.value.cure or "")
    assert "PYTHONPATH" not in (caught.value.cure or "")


def test_one_tensor_is_not_said_to_be_weights_by_name(tmp_path: Path) -> None:
    torch.save(torch.zeros(3), tmp_path / "m.pt")
    with pytest.raises(ModelReadError, match="holds tensors, such as") as caught:
        read_torch_file(tmp_path / "m.pt", input=IMAGE)
    assert caught.value.code == "torch.state_dict"


def test_shapes_are_asked_for_as_python_and_as_the_command_line_take_them(folder: Path) -> None:
    for name in ("pickle.pt", "script.pt"):
        with pytest.raises(UsageError) as caught:
            read_torch_file(folder / name, input=NOTHING, trust=True)
        assert 'input="3,224,224" (--input 3,224,224)' in (caught.value.cure or "")


def test_pickle_of_no_module(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    torch.save(nn.Module, path)
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(path, input=IMAGE, trust=True)
    assert caught.value.code == "torch.no_module"


def test_frozen_script_counts_its_constants_as_weights(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.freeze(torch.jit.script(Net().eval())), path)
    graph = read_torch_file(path, input=IMAGE)
    weights = {tensor.shape for tensor in graph.tensors if tensor.role is TensorRole.PARAMETER}
    assert (Dim(0, 64), Dim(0, 64)) in weights
    # Freezing folds the batch norm into the convolution.
    assert graph.parameter_count == 64 * 27 + 64 + 64 * 64 + 64


def test_files_are_read_from_a_stream_position_zero(folder: Path) -> None:
    # Reading leaves nothing behind: the same file again gives the same graph.
    first = read_torch_file(folder / "traced.bin", input=IMAGE)
    assert read_torch_file(folder / "traced.bin", input=IMAGE) == first
    assert io.BytesIO((folder / "traced.bin").read_bytes()).read(2) == b"PK"


def test_a_file_of_torch_save_that_lacks_tensors_is_incomplete(tmp_path: Path) -> None:
    torch.save(Net(), tmp_path / "whole.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(tmp_path / "part.pt", "w") as part:
        for name in whole.namelist():
            if not name.endswith("data/1"):
                part.writestr(name, whole.read(name))
    with pytest.raises(ModelReadError) as caught:
        read_torch_file(tmp_path / "part.pt", input=IMAGE, trust=True)
    assert caught.value.code == "model.truncated"
