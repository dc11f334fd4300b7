"""Spaces from files and functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from dippm.api.exploration.choices import Choices, count_points
from dippm.api.exploration.space import Space, load_space
from dippm.errors import DippmError, MissingExtraError, UsageError

POINT: Choices = {"depth": 2, "width": 64, "kind": "Relu", "repeats": 1}


def test_a_python_file(space_file: Path) -> None:
    space = load_space(space_file)
    assert count_points(space.choices) == 8 * 16 * (3 + 3 + 1)
    assert len(space.sha256) == 64
    built = space.build_model(POINT)
    assert isinstance(built.model, onnx.ModelProto)
    assert [node.op_type for node in built.model.graph.node] == ["MatMul", "Relu"] * 2
    assert (built.input, built.choices) == (None, POINT)


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        ("CHOICES = {'a': [1]}", "space.invalid", "has no model"),
        ("def model(choices): return 1", "space.invalid", "has no CHOICES"),
        ("CHOICES = {'a': [1]}; model = 3", "space.invalid", "model must be a function"),
        ("CHOICES = {'a': 5}; model = print", "space.invalid", "choices.a must be"),
        ("import nothing_of_this_name", "space.failed", "ModuleNotFoundError"),
        ("import torch.nothing_of_this_name", "space.failed", "ModuleNotFoundError"),
        ("def", "space.failed", "SyntaxError"),
        ("raise SystemExit(0)", "space.failed", "SystemExit"),
    ],
)
def test_a_wrong_file(tmp_path: Path, content: str, code: str, words: str) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(content)
    with pytest.raises(DippmError, match=words) as caught:
        load_space(path)
    assert caught.value.code == code


def test_a_file_with_another_hash_does_not_run(space_file: Path) -> None:
    known = load_space(space_file)
    assert load_space(space_file, sha256=known.sha256).sha256 == known.sha256
    marker = space_file.with_name("it_ran")
    space_file.write_text(f"open({str(marker)!r}, 'w').close()\n{space_file.read_text()}")
    with pytest.raises(UsageError) as caught:
        load_space(space_file, sha256=known.sha256)
    assert caught.value.code == "explore.space_changed"
    assert not marker.exists()


def test_what_was_hashed_is_what_runs(space_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = load_space(space_file)
    read = Path.read_bytes

    def read_and_exchange(path: Path) -> bytes:
        content = read(path)
        if path == space_file:
            path.write_text("raise RuntimeError('exchanged after it was read')")
        return content

    monkeypatch.setattr(Path, "read_bytes", read_and_exchange)
    assert load_space(space_file, sha256=known.sha256).choices == known.choices


@pytest.mark.parametrize(
    ("package", "extra"), [("torch", "torch"), ("timm", "zoo"), ("keras", "tensorflow"), ("paddle", "paddle")]
)
def test_a_framework_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    path = tmp_path / "space.py"
    path.write_text(f"from {package} import nn")
    with pytest.raises(MissingExtraError) as caught:
        load_space(path)
    assert (caught.value.package, caught.value.extra, caught.value.exit_status) == (package, extra, 5)

    def build(_: Choices) -> object:
        return __import__(package)

    space = Space.of({"width": [1, 2]}, build, score=lambda chosen, _: build(chosen))  # type: ignore[arg-type,return-value]
    with pytest.raises(MissingExtraError):
        space.build_model({"width": 1})
    with pytest.raises(MissingExtraError):
        space.score_of({"width": 1}, None)  # type: ignore[arg-type]  # as below


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_space(tmp_path / "missing.py")
    assert caught.value.code == "space.missing"
    (tmp_path / "space.txt").write_text("")
    with pytest.raises(UsageError) as caught:
        load_space(tmp_path / "space.txt")
    assert caught.value.code == "space.invalid"


def test_what_the_users_code_raises_is_about_its_point() -> None:
    def fail(_: Choices) -> object:
        raise RuntimeError("no such width")

    space = Space.of({"width": [1, 2]}, fail, score=lambda *_: float("nan"))
    with pytest.raises(DippmError, match=r'\{"width": 1\}: RuntimeError: no such width') as caught:
        space.build_model({"width": 1})
    assert caught.value.code == "space.build_failed"
    with pytest.raises(DippmError) as caught:
        space.score_of({"width": 1}, None)  # type: ignore[arg-type]  # the score does not look at it
    assert caught.value.code == "space.score_failed"


PLACED = """
CHOICES = {"depth": [1, 2]}


def helper(choices):
    return choices["deph"]


def model(choices):
    if FAULT == "model":
        helper(choices)
    if FAULT == "library":
        import json
        json.loads("{")
    if FAULT == "ours":
        import dippm
        dippm.load("/no/such/model.onnx")


def inputs(choices):
    return helper(choices) if FAULT == "inputs" else (1,)


def score(choices, prediction):
    return helper(choices)
"""


@pytest.mark.parametrize(
    ("fault", "line", "code"),
    [
        ("model", 6, "space.build_failed"),
        ("inputs", 6, "space.build_failed"),
        ("library", 14, "space.build_failed"),
        ("ours", 17, "model.missing"),
    ],
)
def test_a_fault_in_the_space_is_told_with_its_line(tmp_path: Path, fault: str, line: int, code: str) -> None:
    path = tmp_path / "mobilenet.py"
    path.write_text(f"FAULT = {fault!r}{PLACED}")
    space = load_space(path)
    with pytest.raises(DippmError, match=rf'failed for {{"depth": 1}}: .* \(mobilenet\.py, line {line}\)$') as caught:
        space.build_model({"depth": 1})
    assert caught.value.code == code
    with pytest.raises(DippmError, match=r"KeyError: 'deph' \(mobilenet\.py, line 6\)$"):
        space.score_of({"depth": 1}, None)  # type: ignore[arg-type]  # the score does not look at it


@pytest.mark.parametrize(
    ("content", "line"), [("a = 1\nb = a.c\n", 2), ("\n\nimport json\njson.loads('{')\n", 4), ("a = 1\ndef", 2)]
)
def test_a_fault_at_import_is_told_with_its_line(tmp_path: Path, content: str, line: int) -> None:
    path = tmp_path / "broken.py"
    path.write_text(content)
    with pytest.raises(DippmError, match=rf"\(broken\.py, line {line}\)$") as caught:
        load_space(path)
    assert caught.value.code == "space.failed"


def test_a_fault_in_a_function_is_told_with_its_file_and_line() -> None:
    def fail(chosen: Choices) -> object:
        return chosen["deph"]

    line = fail.__code__.co_firstlineno + 1
    space = Space.of({"width": [1, 2]}, fail, score=lambda chosen, _: chosen["deph"])  # type: ignore[arg-type,return-value]
    with pytest.raises(DippmError, match=rf"KeyError: 'deph' \(test_space\.py, line {line}\)$"):
        space.build_model({"width": 1})
    with pytest.raises(DippmError, match=r"KeyError: 'deph' \(test_space\.py, line \d+\)$"):
        space.score_of({"width": 1}, None)  # type: ignore[arg-type]  # as above


def test_a_model_cannot_end_the_program() -> None:
    def leave(*_: object) -> object:
        raise SystemExit(0)

    space = Space.of({"width": [1, 2]}, leave, score=leave)  # type: ignore[arg-type]
    for call in (space.build_model, lambda chosen: space.score_of(chosen, None)):  # type: ignore[arg-type]
        with pytest.raises(DippmError, match="SystemExit"):
            call({"width": 1})


def test_a_point_cannot_change_the_choices_it_is_given() -> None:
    def empty(chosen: Choices) -> object:
        chosen.clear()
        return "timm:resnet18"

    chosen: Choices = {"width": 1}
    assert Space.of({"width": [1, 2]}, empty).build_model(chosen).choices == chosen == {"width": 1}


@pytest.mark.parametrize(
    "point", [{}, {"width": 3}, {"width": 1, "more": 1}, {"width": True}, {"width": 2, "gate": 1}, {"width": 1}]
)
def test_only_points_of_the_space_are_taken_for_such(point: Choices) -> None:
    given = {"width": [1, 2], "gate": {"of": [1, 2], "if": {"width": 1}}}
    make: Callable[[Choices], object] = dict
    space = Space.of(given, make)
    assert space.check({"width": 2}) == {"width": 2}
    with pytest.raises(UsageError) as caught:
        space.check(point)
    assert caught.value.code == "space.mismatch"


def test_modules_are_built_without_weights(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "from torch import nn\nCHOICES = {'width': [10**6]}\n"
        "def model(choices): return nn.Linear(choices['width'], choices['width'])\n"
        "def inputs(choices): return (choices['width'],)\n"
    )
    built = load_space(path).build_model({"width": 10**6})
    assert built.model.weight.device.type == "meta"  # type: ignore[attr-defined]
    assert built.input == (10**6,)
