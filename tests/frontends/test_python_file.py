"""Models of a user's Python file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import dippm
from dippm.errors import DippmError, ModelReadError, UsageError
from dippm.frontends.python_file import build_from_python, find_python_model, is_python_file

_CODE = """
from torch import nn

from layers_of_test import Block


class Net(nn.Sequential):
    def __init__(self, size=64):
        super().__init__(Block(size), nn.Linear(size, 10))


class Zoo:
    @staticmethod
    def wide():
        return Net(256)


def needs(size):
    return Net(size)


def broken():
    raise ValueError("no such luck")


def leaves():
    raise SystemExit(3)


def text():
    return "net.onnx"


def _hidden():
    return Net()


SMALL = Net(8)
if __name__ == "__main__":
    raise RuntimeError("a script")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    block = "from torch import nn\n\n\nclass Block(nn.Sequential):\n    def __init__(self, size):\n"
    block += "        super().__init__(nn.Linear(size, size), nn.ReLU())\n"
    (tmp_path / "layers_of_test.py").write_text(block, encoding="utf-8")
    path = tmp_path / "net.py"
    path.write_text(_CODE, encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "size"), [("Net", 64), ("Zoo.wide", 256), ("SMALL", 8)])
def test_a_class_a_function_and_a_model_are_read(file: Path, name: str, size: int) -> None:
    before = list(sys.path)
    graph = dippm.load(f"{file}:{name}", input=str(size), trust=True)
    assert graph.source == f"{file}:{name}"
    assert [node.kind.value for node in graph.nodes] == ["linear", "relu", "linear"]
    assert sum(graph.tensors[index].shape[-1].fixed == size for index in graph.inputs) == 1
    assert sys.path == before


def test_a_path_object_names_one_too(file: Path) -> None:
    assert dippm.load(Path(f"{file}:Net"), input="64", trust=True).nodes


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("Nope", "python.name", "It has Net, Zoo, needs, broken, leaves, text."),
        ("Net.nope", "python.name", "no Net.nope"),
        ("needs", "python.failed", "missing 1 required positional argument: 'size'"),
        ("broken", "python.failed", "ValueError: no such luck (net.py, line 23)"),
        ("leaves", "python.failed", "SystemExit: 3"),
        ("text", "python.no_model", "gives no model of a framework but str"),
    ],
)
def test_what_is_no_model_is_told(file: Path, name: str, code: str, told: str) -> None:
    before = list(sys.path)
    with pytest.raises(DippmError) as caught:
        dippm.load(f"{file}:{name}", input="64", trust=True)
    assert caught.value.code == code
    assert told in str(caught.value)
    assert sys.path == before


def test_nothing_runs_without_trust(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("raise RuntimeError('it ran')", encoding="utf-8")
    with pytest.raises(UsageError, match="runs its code") as caught:
        dippm.load(f"{file}:Net", input="64")
    assert caught.value.code == "python.refused"
    with pytest.raises(ModelReadError, match="it ran") as failed:
        dippm.load(f"{file}:Net", input="64", trust=True)
    assert failed.value.code == "python.failed"


@pytest.mark.parametrize("content", [b"def (", b"\x00", b"\xff\xfe", b"(" * 5000])
def test_what_is_no_python_is_told(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "net.py"
    file.write_bytes(content)
    with pytest.raises(ModelReadError) as caught:
        dippm.load(f"{file}:Net", input="64", trust=True)
    assert caught.value.code == "python.failed"
    with pytest.raises(UsageError) as unnamed:
        dippm.load(file, input="64", trust=True)
    assert "as in net.py:Net." in str(unnamed.value)


def test_a_file_alone_says_what_it_has_and_is_not_run(file: Path) -> None:
    with pytest.raises(UsageError, match=r"as in net.py:Net; it has Net, Zoo, needs, broken, leaves, text\.") as caught:
        dippm.load(file, input="64", trust=True)
    assert caught.value.code == "python.name"


def test_a_framework_beside_it_is_refused(file: Path) -> None:
    with pytest.raises(UsageError) as caught:
        dippm.load(f"{file}:Net", input="64", trust=True, framework="pytorch")
    assert caught.value.code == "framework.mismatch"


def test_names_and_files_are_told_apart(tmp_path: Path) -> None:
    assert find_python_model(Path("a/net.py:Net")) == (Path("a/net.py"), "Net")
    assert find_python_model(Path("C:/a/net.py:Zoo.wide")) == (Path("C:/a/net.py"), "Zoo.wide")
    for other in ("net.py", "net.py:", "net.py:2", "net.py:a-b", "timm:net", "net.pt:Net", "net.py:a."):
        assert find_python_model(Path(other)) is None
    odd = tmp_path / "net.py:Net"
    odd.write_bytes(b"")
    assert find_python_model(odd) is None
    assert not is_python_file(tmp_path / "net.py")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelReadError) as caught:
        build_from_python(tmp_path / "net.py", "Net", trust=True)
    assert caught.value.code == "model.missing"
    (tmp_path / "net.py").mkdir()
    with pytest.raises(ModelReadError) as unreadable:
        build_from_python(tmp_path / "net.py", "Net", trust=True)
    assert unreadable.value.code == "model.unreadable"
