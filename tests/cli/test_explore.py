"""``dippm explore``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dippm
from dippm.cli import main
from dippm.predictors.prediction import round_figures

SPACE = """
from onnx import helper

CHOICES = {"width": range(16, 129, 16), "depth": range(1, 5)}

def model(choices):
    width, depth = choices["width"], choices["depth"]
    return helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", [f"x{at}", f"w{at}"], [f"x{at + 1}"]) for at in range(depth)],
            "net",
            [helper.make_tensor_value_info("x0", 1, ["batch", width])],
            [helper.make_tensor_value_info(f"x{depth}", 1, ["batch", width])],
            [helper.make_tensor(f"w{at}", 1, (width, width), bytes(4 * width**2), raw=True) for at in range(depth)],
        ),
        ir_version=9,
        opset_imports=[helper.make_opsetid("", 20)],
    )
"""
OBJECTIVES = "latency,params:max"


@pytest.fixture(name="space")
def _space(tmp_path: Path) -> str:
    path = tmp_path / "space.py"
    path.write_text(SPACE)
    return str(path)


def test_json_is_the_api(space: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explore", "--space", space, "--objective", OBJECTIVES, "--trials", "15", "--device", "T4", "--seed", "2"]
    words += ["--limit", "memory_mb=8000", "--limit", "params>=300", "--out", str(tmp_path / "out"), "--json"]
    assert main(words) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    files = answer.pop("files")
    assert [Path(file).name for file in files][-1] == "trials.csv"
    assert all(Path(file).exists() for file in files)
    found = dippm.explore(
        space, objectives=OBJECTIVES, trials=15, device="T4", seed=2, limits=["memory_mb=8000", "params>=300"]
    )
    assert answer == json.loads(json.dumps({"schema": 1, **found.to_dict()}))
    assert answer["tried"] == 15
    assert answer["limits"] == ["memory_mb<=8000", "params>=300"]


def test_columns_have_one_row_for_each_point(space: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--space", space, "--objective", OBJECTIVES, "-n", "15", "--sampler", "random"]) == 0
    captured = capsys.readouterr()
    header, *rows = (line.split("\t") for line in captured.out.splitlines())
    assert header == [
        "number", "trial", "latency_ms", "latency_ms_low", "latency_ms_high", "params", "memory_mb", "memory_mb_low",
        "memory_mb_high", "mig", "rivals", "width", "depth",
    ]  # fmt: skip
    found = dippm.explore(space, objectives=OBJECTIVES, trials=15, sampler="random")
    assert [int(row[1]) for row in rows] == [trial.number for trial in found.front]
    assert [int(row[-2]) for row in rows] == [trial.choices["width"] for trial in found.front]
    assert "! " in captured.err


def test_a_terminal_gets_a_table(
    space: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["explore", "--space", space, "--objective", OBJECTIVES, "-n", "15"]) == 0
    out = capsys.readouterr().out
    assert "of 15 models are on the front" in out
    assert "latency_ms:min, params:max" in out
    assert "width 128" in out


def test_an_interruption_says_how_to_go_on(
    space: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dippm.api, "explore", interrupt)
    words = ["explore", "--space", space, "--objective", OBJECTIVES, "--out", str(tmp_path / "out")]
    assert main(words) == 130
    assert "--resume goes on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (["--objective", "speed"], 2, "explore.objective"),
        (["--objective", "score"], 2, "explore.objective"),
        (["--objective", "latency", "--limit", "latency"], 2, "explore.limit"),
        (["--objective", "latency", "--device", "A100,T4"], 2, "device.invalid"),
        (["--objective", "latency", "--device", "none-such"], 4, "device.unknown"),
        (["--objective", "latency", "--resume"], 2, "explore.settings"),
        ([], 2, "usage.invalid"),
    ],
)
def test_wrong_use(space: str, words: list[str], status: int, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--space", space, *words, "--json"]) == status
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code


def test_columns_have_the_digits_that_mean_something(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "space.py"
    path.write_text(f"{SPACE}\ndef score(choices, prediction):\n    return choices['depth'] + 1 / 3\n")
    assert main(["explore", "--space", str(path), "--objective", "latency,score:max", "-n", "9"]) == 0
    header, *rows = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    for row in (dict(zip(header, cells, strict=True)) for cells in rows):
        assert row["score"] == f"{int(row['depth']) + 1 / 3:.6g}"
        assert float(row["latency_ms"]) == round_figures(float(row["latency_ms"]))


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_a_space_prints_is_not_the_result(tmp_path: Path, jobs: str) -> None:
    path = tmp_path / "space.py"
    path.write_text(
        f"import os, subprocess, sys\nprint('at import')\n{SPACE}    print('never')\n".replace(
            "    width, depth =",
            "    print('in model'); os.write(1, b'descriptor\\n')\n"
            "    subprocess.run([sys.executable, '-c', 'print(\"process\")'])\n    width, depth =",
        )
    )
    words = ["explore", "--space", str(path), "--objective", OBJECTIVES, "-n", "3", "--jobs", jobs, "--json"]
    done = subprocess.run([sys.executable, "-m", "dippm", *words], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["tried"] == 3
    assert {"at import", "in model", "descriptor", "process"} <= set(done.stderr.splitlines())


@pytest.mark.parametrize("where", ["at import", "model", "inputs", "score"])
def test_a_space_cannot_end_the_program(tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "space.py"
    ends = {name: "    sys.exit(3)\n" if name == where else "    pass\n" for name in ("model", "inputs", "score")}
    content = "import sys\n" + ("sys.exit(3)\n" if where == "at import" else "") + SPACE
    content = content.replace("def model(choices):\n", f"def model(choices):\n{ends['model']}")
    content += f"\ndef inputs(choices):\n{ends['inputs']}    return None\n"
    content += f"\ndef score(choices, prediction):\n{ends['score']}    return 1\n"
    path.write_text(content)
    line = content.splitlines().index("    sys.exit(3)" if where != "at import" else "sys.exit(3)") + 1
    assert main(["explore", "--space", str(path), "--objective", OBJECTIVES, "-n", "3", "--json"]) in {1, 3}
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["message"].endswith(f"SystemExit: 3 (space.py, line {line})")
    assert (error["code"] == "space.failed") == (where == "at import")


@pytest.mark.parametrize("where", ["file", "model"])
def test_without_the_framework_that_a_space_imports(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    space = tmp_path / "space.py"
    lines = ["from torch import nn"] if where == "file" else []
    lines += ["CHOICES = {'width': [1, 2]}", "def model(choices):", "    from torch import nn"]
    space.write_text("\n".join(lines))
    assert main(["explore", "--space", str(space), "--objective", "latency", "--json"]) == 5
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "extra.missing"
    assert "dippm[torch]" in error["message"]


def test_help_and_the_default_search_import_nothing_heavy(space: str) -> None:
    code = (
        "import sys; from dippm.cli import main\n"
        f"status = main({['explore', '--space', space, '--objective', OBJECTIVES, '-n', '35']!r})\n"
        "heavy = {'torch', 'optuna', 'matplotlib', 'pandas', 'pyarrow', 'ray', 'yaml'} & set(sys.modules)\n"
        "print(status, sorted(heavy), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "0 []"
