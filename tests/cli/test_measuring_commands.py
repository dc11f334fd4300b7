"""``dippm measure`` and ``dippm dataset``: what goes where, with a device that answers at once."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from dippm.cli import main
from dippm.datasets.campaign import graph_hashes
from dippm.datasets.campaign import run as campaign_run
from dippm.errors import UnsupportedError
from dippm.measuring import device_names, worker
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome
from dippm.measuring.protocol import Plan


class FakeWorker:
    busy_s = 0.0
    is_gone = False

    def __init__(self, device: str, *, configuration_limit_s: float, plan: Plan | None = None) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def measure(self, source: Any, configurations: Sequence[Configuration]) -> Iterator[Measurement]:
        if self.is_gone:
            raise UnsupportedError("The device is gone.", code="device.unavailable")
        for configuration in configurations:
            is_full = configuration.batch > 100
            yield Measurement(
                outcome=Outcome.OUT_OF_MEMORY if is_full else Outcome.OK,
                message="no \x1b[31mroom" if is_full else "",
                device="H200",
                measured_at="2026-01-01T00:00:00+00:00",
                timed_runs=30,
                warmup_runs=5,
                latency_ms=None if is_full else 1.25 * configuration.batch,
                latency_std_ms=None if is_full else 0.125,
                memory_mb=None if is_full else 640.0,
            )


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "Worker", FakeWorker)
    monkeypatch.setattr(device_names, "describe_device", lambda device: "H200" if "cuda" in device else "Processor")
    monkeypatch.setattr(graph_hashes.GraphHashes, "add", lambda self, recipe: None)


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


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert answer["schema"] == 1
    return answer


def run_columns(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[list[dict[str, str]], str]:
    assert main(list(words)) == 0
    captured = capsys.readouterr()
    header, *rows = (line.split("\t") for line in captured.out.splitlines())
    return [dict(zip(header, row, strict=True)) for row in rows], captured.err


def test_measured_and_predicted_stand_side_by_side(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    predicted = run_json(capsys, "predict", net, "--batch", "1,8", "--device", "H200")["predictions"]
    rows, _ = run_columns(capsys, "measure", net, "--batch", "1,8", "--device", "cuda")
    assert [(row["batch"], row["outcome"], row["latency_ms"]) for row in rows] == [
        ("1", "ok", "1.25"),
        ("8", "ok", "10.0"),
    ]
    assert [float(row["predicted_latency_ms"]) for row in rows] == [each["latency_ms"] for each in predicted]
    assert all(float(row["predicted_latency_low"]) < float(row["predicted_latency_high"]) for row in rows)
    assert all(float(row["predicted_energy_low"]) < float(row["predicted_energy_high"]) for row in rows)
    assert rows[0]["energy_j"] == ""
    answer = run_json(capsys, "measure", net, "--batch", "1,8", "--device", "cuda:0")
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
        warnings.simplefilter("ignore", DeprecationWarning)
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


def test_onnxruntime_is_not_predicted_on_a_processor(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    (row,), err = run_columns(capsys, "measure", net)
    assert (row["device"], row["predicted_latency_ms"]) == ("H200", "")
    assert "onnxruntime" in err
    assert run_json(capsys, "measure", net)["measurements"][0]["predicted"] is None


def test_the_table_shows_both_and_what_failed(
    net: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["measure", net, "--batch", "2,128", "--device", "cuda"]) == 0
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


def test_a_campaign_from_start_to_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, out = str(tmp_path / "labels.sqlite"), tmp_path / "out"
    campaign = ("dataset", "measure", "--recipe", "cpu-small", "--store", store, "--limit", "9", "--out", str(out))
    report = run_json(capsys, *campaign, "--mode", "inference,training", "--budget", "5m")
    assert report["measured"] >= 18
    assert report["device"] == "Processor"
    saved = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert saved == {key: value for key, value in report.items() if key != "schema"}
    assert "18" in (out / "report.txt").read_text(encoding="utf-8")

    assert main([*campaign, "--mode", "training"]) == 2
    assert "campaign.not_resumed" in capsys.readouterr().err
    again = run_json(capsys, *campaign, "--mode", "inference,training", "--resume")
    assert (again["measured"], again["found"]) == (0, report["measured"])
    assert main([*campaign, "--mode", "inference,training", "--resume"]) == 0
    assert "0 measured" in capsys.readouterr().out

    table = str(tmp_path / "labels.parquet")
    assert run_json(capsys, "dataset", "export", store, table)["rows"] == report["measured"]
    other = str(tmp_path / "other.sqlite")
    assert run_json(capsys, "dataset", "import", table, "--store", other)["added"] == report["measured"]
    statistics = run_json(capsys, "dataset", "stats", other, "--plots", str(tmp_path / "plots"))
    assert statistics["rows"] == report["measured"]
    assert all(Path(path).exists() for path in statistics["plots"])
    assert statistics["plots"]
    rows, err = run_columns(capsys, "dataset", "stats", table)
    assert sum(int(row["rows"]) for row in rows) == report["measured"]
    assert {row["mode"] for row in rows} == {"inference", "training"}
    assert f"{report['measured']} labels" in err


@pytest.mark.parametrize("json_option", [(), ("--json",)])
def test_a_campaign_that_an_error_ends_leaves_its_report(
    json_option: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeWorker, "is_gone", True)
    monkeypatch.setattr(campaign_run, "_START_PAUSES_S", (0.0,))
    words = ("dataset", "measure", "--recipe", "cpu-small", "--store", str(tmp_path / "labels.sqlite"), "--limit", "3")
    assert main([*words, "--no-graphs", "--row-limit", "20s", "--out", str(tmp_path / "out"), *json_option]) == 4
    printed = capsys.readouterr()
    assert "The device is gone." in printed.out + printed.err
    if json_option:
        assert json.loads(printed.out)["error"]["code"] == "device.unavailable"
    else:
        assert "failed after" in printed.out
    saved = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert (saved["stopped"], saved["measured"], saved["remaining"]) == ("failed", 0, 3)
    assert "failed after" in (tmp_path / "out" / "report.txt").read_text(encoding="utf-8")
    # With the device back, the same command and --resume go on.
    monkeypatch.setattr(FakeWorker, "is_gone", False)
    assert run_json(capsys, *words, "--resume", "--retry", "failed,timed-out")["measured"] >= 3


def test_statistics_as_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = str(tmp_path / "labels.sqlite")
    assert main(["dataset", "measure", "--recipe", "cpu-small", "--store", store, "--limit", "3"]) == 0
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "120")
    capsys.readouterr()
    assert main(["dataset", "stats", store]) == 0
    text = capsys.readouterr().out
    assert "Processor, inference, fp32" in text
    assert "640" in text
    assert main(["dataset", "recipes"]) == 0
    assert "10,508" in capsys.readouterr().out


def test_collections_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    collections = {each["name"]: each for each in run_json(capsys, "dataset", "recipes")["collections"]}
    rows, _ = run_columns(capsys, "dataset", "recipes")
    for name, entry in collections.items():
        assert sum(int(row["recipes"]) for row in rows if row["collection"] == name) == entry["recipes"]


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("measure", "--recipe", "no-such", "--store", "s.sqlite"), 2, "collection.unknown"),
        (("measure", "--recipe", "cpu-small", "--store", "s.sqlite", "--budget", "soon"), 2, "duration.invalid"),
        (("measure", "--recipe", "cpu-small", "--store", "s.sqlite", "--mode", ","), 2, "usage.invalid"),
        (("stats", "none.sqlite"), 2, "labels.missing"),
        (("export", "none.sqlite", "out.parquet"), 2, "labels.missing"),
        (("import", "none.parquet", "--store", "s.sqlite"), 2, "parquet.missing"),
        (("graphs", "--recipe", "no-such", "--cache", "c"), 2, "collection.unknown"),
    ],
)
def test_wrong_use_is_an_error_and_leaves_nothing_behind(
    words: tuple[str, ...],
    status: int,
    code: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["dataset", *words, "--json"]) == status
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
    assert not list(tmp_path.glob("out.parquet"))


@pytest.mark.parametrize("words", [["measure", "--help"], ["dataset", "--help"], ["dataset", "measure", "--help"]])
def test_help_is_light(words: list[str]) -> None:
    code = (
        f"import sys, dippm.cli; assert dippm.cli.main({words!r}) == 0; "
        "heavy = {'torch', 'sqlalchemy', 'pandas', 'matplotlib', 'pyarrow', 'numpy', 'onnx'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
