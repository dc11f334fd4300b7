"""``dippm sweep``: what it prints in each of its forms, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import dippm
from dippm.api import sweep_plan
from dippm.cli import main
from dippm.graph import OpKind


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, new_builder: Callable[[], Any]) -> Path:
    """Two graphs and a file that is none."""
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("a", "b"):
        builder = new_builder()
        builder.node(OpKind.RELU, [builder.input(builder.N, 64)], builder.N, 64)
        dippm.save_graph(builder.graph(), folder / f"{name}.json.gz")
    (folder / "broken.onnx").write_bytes(b"no model")
    return folder


def test_a_report_as_json(run_json: Callable[..., dict[str, Any]], folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    words = ("sweep", str(folder), "--batch", "1,8", "--device", "A100,T4", "--out", str(out), "--jobs", "1")
    report = run_json(*words)["sweep"]
    assert {name: report[name] for name in ("out", "models", "rows", "errors", "workers", "resumed_models")} == {
        "out": str(out), "models": 3, "rows": 9, "errors": 1, "workers": 0, "resumed_models": 0,
    }  # fmt: skip
    (failure,) = report["failures"]
    assert (failure["code"], failure["rows"], failure["model"]) == (
        "model.unrecognised", 1, str(folder / "broken.onnx"),
    )  # fmt: skip
    rows = pyarrow.parquet.read_table(out).to_pylist()
    assert len(rows) == 9
    answer = dippm.predict(folder / "a.json.gz", batch=8, device="T4").to_dict()
    assert rows[3]["latency_ms"] == answer["latency_ms"]


def test_options_reach_the_rows(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    words = ["sweep", str(folder / "a.json.gz"), "--mode", "training", "--optimizer", "adam", "--precision", "amp"]
    assert main([*words, "--out", str(out), "--jobs", "1", "--json"]) == 1  # it has nothing to train
    assert ",training,amp,nchw,eager," in out.read_text(encoding="utf-8").splitlines()[1]


def test_a_list_and_columns_for_a_pipe(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "list.txt").write_text(f"{folder / 'a.json.gz'}\n{folder / 'none.onnx'}\n")
    assert main(["sweep", f"@{tmp_path / 'list.txt'}", "--out", str(tmp_path / "t.parquet"), "--jobs", "1"]) == 0
    printed = capsys.readouterr()
    head, row = (line.split("\t") for line in printed.out.splitlines())
    assert dict(zip(head, row, strict=True)) | {"seconds": ""} == {
        "out": str(tmp_path / "t.parquet"), "models": "2", "rows": "2", "errors": "1", "seconds": "",
    }  # fmt: skip
    assert "! 1 x model.missing" in printed.err


def test_the_same_command_again_says_that_it_is_done(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", str(folder), "--jobs", "1", "--resume", "--out", str(tmp_path / "t.parquet")]
    assert main(words) == 0
    first = capsys.readouterr()
    assert "nothing was left" not in first.err
    content = (tmp_path / "t.parquet").read_bytes()
    assert main(words) == 0
    again = capsys.readouterr()
    assert again.out.splitlines()[1].split("\t")[:4] == first.out.splitlines()[1].split("\t")[:4]
    assert "nothing was left to predict" in again.err
    assert "! 1 x model.unrecognised" in again.err
    assert (tmp_path / "t.parquet").read_bytes() == content
    assert main([*words, "--batch", "2"]) == 2
    assert "[sweep.exists]" in capsys.readouterr().err
    table = [*words[:-1], str(tmp_path / "t.csv")]
    assert main(table) == 0
    assert main(table) == 2
    assert "does not say which sweep made it" in capsys.readouterr().err


def test_a_sweep_without_any_prediction_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table is there all the same: it says why."""
    out = tmp_path / "t.parquet"
    assert main(["sweep", str(tmp_path / "*.onnx"), "--out", str(out), "--jobs", "1"]) == 1
    printed = capsys.readouterr().err
    assert "No model could be predicted" in printed
    (row,) = pyarrow.parquet.read_table(out).to_pylist()
    assert row["error_code"] == "model.missing"
    assert "without quotes" in row["error"]


@pytest.mark.usefixtures("tables")
def test_a_table_for_a_terminal(run_table: Callable[..., str], folder: Path, tmp_path: Path) -> None:
    printed = run_table("sweep", str(folder), "--out", str(tmp_path / "t.parquet"), "--jobs", "1")
    assert "3 rows of 3 models, 1 errors" in printed
    assert "model.unrecognised" in printed


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [
        (["--out", "t.xlsx"], "sweep.out", 2),
        (["--out", "t.parquet", "--batch", "0"], "batch.invalid", 2),
        (["--out", "t.parquet", "--device", "A1000000"], "device.unknown", 4),
        (["--out", "t.parquet", "--jobs", "0"], "jobs.invalid", 2),
        (["--out", "t.parquet", "--model-limit", "soon"], "duration.invalid", 2),
        ([], "usage.invalid", 2),
    ],
)
def test_errors_have_a_code_and_a_status(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: str,
    status: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", str(folder), *words]) == status
    assert f"[{code}]" in capsys.readouterr().err
    assert not list(tmp_path.glob("t.*"))


def test_an_interrupt_ends_it_cleanly_and_says_how_to_go_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_plan, "_TASKS_PER_PART", 2)
    out, batches = tmp_path / "t.parquet", ",".join(map(str, range(1, 40)))
    words = ["sweep", *[str(folder / "a.json.gz")] * 500, "--batch", batches, "--out", str(out), "--jobs", "1"]
    code = (
        # A shell's background jobs ignore the signal, and what they start inherits that.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "import sys, dippm.cli; from dippm.api import sweep_plan; sweep_plan._TASKS_PER_PART = 2; "
        "sys.exit(dippm.cli.main(sys.argv[1:]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True)
    parts = tmp_path / "t.parquet.parts"
    while not list(parts.glob("*.parquet")):
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in said
    assert "Traceback" not in said
    assert main([*words, "--resume", "--json"]) == 0
    assert pyarrow.parquet.read_metadata(out).num_rows == 500 * 39
