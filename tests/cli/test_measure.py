"""``dippm measure``: measured and predicted side by side, with a device that answers at once."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from dippm.cli import main, progress

pytestmark = pytest.mark.usefixtures("fake_worker")


@pytest.fixture
def net(tmp_path: Path) -> str:
    weight = helper.make_tensor("w", TensorProto.FLOAT, (8, 8), np.ones((8, 8), np.float32).tobytes(), raw=True)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [weight],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def test_measured_and_predicted_stand_side_by_side(
    net: str,
    run_json: Callable[..., dict[str, Any]],
    run_noted_columns: Callable[..., tuple[list[dict[str, str]], str]],
) -> None:
    predicted = run_json("predict", net, "--batch", "1,8", "--device", "H200", "--precision", "tf32")["predictions"]
    rows, _ = run_noted_columns("measure", net, "--batch", "1,8", "--device", "cuda", "--precision", "tf32")
    assert [(row["batch"], row["outcome"], row["latency_ms"]) for row in rows] == [
        ("1", "ok", "1.25"),
        ("8", "ok", "10.0"),
    ]
    assert [float(row["predicted_latency_ms"]) for row in rows] == [each["latency_ms"] for each in predicted]
    assert all(float(row["predicted_latency_low"]) < float(row["predicted_latency_high"]) for row in rows)
    assert all(float(row["predicted_energy_low"]) < float(row["predicted_energy_high"]) for row in rows)
    assert rows[0]["energy_j"] == ""
    answer = run_json("measure", net, "--batch", "1,8", "--device", "cuda:0", "--precision", "tf32")
    assert [each["predicted"] for each in answer["measurements"]] == predicted
    assert [each["measured"]["latency_ms"] for each in answer["measurements"]] == [1.25, 10.0]
    assert answer["measurements"][0]["engine"] == "onnxruntime"


def test_a_processor_is_measured_and_predicted_for_real(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the device that answers at once
    monkeypatch.chdir(tmp_path)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 4))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.jit.*")
        torch.jit.save(torch.jit.trace(module.eval(), torch.randn(1, 3, 8, 8), check_trace=False), "tiny.pt")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["measure", "tiny.pt", "--batch", "1,4", "--input", "3,8,8", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(lines) if "measured" in line)
    first, predicted, _, second, predicted_too, _ = (line.split() for line in lines[start : start + 6])
    assert (first[:2], second[:2]) == (["1", "measured"], ["4", "measured"])
    for name, latency_ms, energy_j, memory_mb in (predicted, predicted_too):
        assert (name, energy_j) == ("predicted", "-")
        assert 0 < float(latency_ms) < 100
        assert 50 < float(memory_mb) < 5000
    assert "fitted on: " in " ".join(lines)
    assert "cpu-0" in " ".join(lines)


def test_onnxruntime_is_not_predicted_on_a_processor(
    net: str,
    run_json: Callable[..., dict[str, Any]],
    run_noted_columns: Callable[..., tuple[list[dict[str, str]], str]],
) -> None:
    (row,), err = run_noted_columns("measure", net)
    assert (row["device"], row["predicted_latency_ms"]) == ("H200", "")
    assert "onnxruntime" in err
    assert run_json("measure", net)["measurements"][0]["predicted"] is None


def test_a_row_that_failed_is_told_by_the_status_and_keeps_no_other(
    net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["measure", net, "--device", "cuda", "--precision", "tf32", "--batch"]
    assert main([*asked, "2", "--json"]) == 0
    capsys.readouterr()
    assert main([*asked, "2,128,4", "--json"]) == 1
    measured = [each["measured"] for each in json.loads(capsys.readouterr().out)["measurements"]]
    assert [(each["outcome"], each["latency_ms"]) for each in measured] == [
        ("ok", 2.5),
        ("out-of-memory", None),
        ("ok", 5.0),
    ]
    assert main([*asked, "128,4"]) == 1
    header, *rows = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert [row[header.index("outcome")] for row in rows] == ["out-of-memory", "ok"]


def test_the_table_shows_both_and_what_failed(
    net: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["measure", net, "--batch", "2,128", "--device", "cuda", "--precision", "tf32"]) == 1
    text = capsys.readouterr().out
    assert "2.5 ± 0.125" in text
    assert "predicted" in text
    assert "out-of-memory" in text
    assert "\x1b[31m" not in text
    assert "30 calls" in text


def test_a_wrong_model_is_an_error_with_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "nothing.onnx"]) == 3
    assert main(["measure", "timm:no_such_net"]) == 4
    assert "zoo.unknown" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["measure", "--help"], ["dataset", "--help"], ["dataset", "measure", "--help"]])
def test_help_is_light(words: list[str]) -> None:
    code = (
        f"import sys, dippm.cli; assert dippm.cli.main({words!r}) == 0; "
        "heavy = {'torch', 'sqlalchemy', 'pandas', 'matplotlib', 'pyarrow', 'numpy', 'onnx'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_what_takes_long_is_told_on_stderr(
    net: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_FIRST_LINE_S", 0.0)
    assert main(["measure", net, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "measurements: building and running the model ...\n"
    assert json.loads(printed.out)["model"] == net
