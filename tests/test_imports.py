"""What is imported when: a prediction from an ONNX file must not wait for a training framework."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import dippm

HEAVY = {"torch", "tensorflow", "paddle", "pandas", "pyarrow", "lightgbm", "scipy", "sklearn", "fastapi", "ray"}


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    shape = ["batch", 8]
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [helper.make_tensor("w", TensorProto.FLOAT, [8, 8], bytes(256), raw=True)],
    )
    path = tmp_path / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def imported_by(code: str) -> set[str]:
    """Top-level packages that are imported once this code has run."""
    report = (
        "\nimport sys, json\nsys.stderr.write(chr(10) + json.dumps(sorted({n.partition('.')[0] for n in sys.modules})))"
    )
    result = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return set(json.loads(result.stderr.splitlines()[-1]))


def run_main(*words: str) -> str:
    return f"import dippm.cli; assert dippm.cli.main({list(words)!r}) == 0"


def test_package_itself_is_light() -> None:
    assert imported_by("import dippm") & (HEAVY | {"onnx", "rich", "typer"}) == set()


def test_package_tells_its_version() -> None:
    assert dippm.__version__ == version("dippm")


def test_help_is_light() -> None:
    assert imported_by(run_main("--help")) & (HEAVY | {"numpy", "onnx"}) == set()


def test_devices_need_no_numpy() -> None:
    assert imported_by(run_main("devices", "--json")) & (HEAVY | {"onnx", "rich"}) == set()


def test_prediction_of_an_onnx_file_imports_no_framework(model_file: Path) -> None:
    found = imported_by(run_main("predict", str(model_file), "--json"))
    assert "onnx" in found
    assert found & (HEAVY | {"rich"}) == set()


def test_prediction_by_a_trained_network_imports_no_framework(
    model_file: Path, write_predictor: Callable[..., Path]
) -> None:
    found = imported_by(run_main("predict", str(model_file), "--predictor", str(write_predictor()), "--json"))
    assert "safetensors" in found
    assert found & (HEAVY | {"rich", "lightning"}) == set()


def test_inspection_of_an_onnx_file_imports_no_framework(model_file: Path, tmp_path: Path) -> None:
    found = imported_by(run_main("inspect", str(model_file), "--html", str(tmp_path / "page.html")))
    assert found & (HEAVY | {"rich"}) == set()
    assert (tmp_path / "page.html").stat().st_size > 0
