"""``dippm evaluate --protocol dnnperf``: what it asks for and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dippm.api import DnnperfEvaluation
from dippm.cli import main
from dippm.evaluation.dippm_report import DatasetSummary
from dippm.evaluation.dnnperf_report import DnnperfReport, DnnperfSettings, ErrorPair, StepScore, UnseenScore


def score(model: str, error: float) -> StepScore:
    return StepScore(
        model=model,
        seed=0,
        rows={"training": 7, "validation": 2, "test": 1},
        fitted_percent={"training": {"latency_ms": error / 2}, "validation": {"latency_ms": error}},
        test={"overall": {"latency_ms": ErrorPair(mre_percent=error, rmse=10 * error)}},
        group_rows={"overall": 1},
    )


HELD_OUT = UnseenScore(name="vgg", rows=4, errors={"anee": {"latency_ms": ErrorPair(mre_percent=31.5, rmse=2.0)}})
REPORT = DnnperfReport(
    dataset=DatasetSummary(
        device="GPU", conditions="training, fp32", mode="training", precision="fp32", source="dippm",
        software=("torch",), metrics=("latency_ms",), rows=10, models=5, families=2, operators=(1, 2, 3), unread=0,
        data_hash="0", noise=(),
    ),
    settings=DnnperfSettings(family_groups=1),
    comparison=(score("anee", 12.5), score("gbdt", 6.25)),
    ablation=(score("anee-gat", 15.0),),
    unseen=(),
    left_out=(HELD_OUT,),
    rows=(),
    provenance={},
)  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []

    def evaluate_dnnperf(data: str, out: Path, **options: Any) -> DnnperfEvaluation:
        options["on_graph"](1, 2)
        options["on_run"](0, 2, "anee")
        calls.append({"data": data, "out": out, **options})
        return DnnperfEvaluation(report=REPORT, files=(out / "a.md", out / "a.html"))

    monkeypatch.setattr("dippm.api.evaluate_dnnperf", evaluate_dnnperf)
    return calls


WORDS = ("evaluate", "--protocol", "dnnperf", "--data", "labels.parquet", "--out", "folder")


def test_options_reach_the_protocol(asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--seeds", "3", "--seed", "4", "--lr", "auto", "--hidden", "32", "--epochs", "5", "--precision", "amp")
    assert main([*WORDS, *options, "--leave-families-out", "2", "--layout", "nhwc", "--mixed-precision", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["protocol"] == "dnnperf"
    assert answer["files"] == [str(Path("folder/a.md")), str(Path("folder/a.html"))]
    assert answer["comparison"][0]["test"]["overall"]["latency_ms"]["mre_percent"] == 12.5
    (call,) = asked
    wanted = {
        "data": "labels.parquet", "out": Path("folder"), "seeds": 3, "seed": 4, "learning_rate": "auto", "hidden": 32,
        "mixed_precision": True,
        "epochs": 5, "leave_families_out": 2, "precision": "amp", "layout": "nhwc", "device": None,
    }  # fmt: skip
    assert {name: call[name] for name in wanted} == wanted


def test_columns_and_table(
    asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "0")
    assert main(list(WORDS)) == 0
    found = capsys.readouterr()
    assert "comparison\tgbdt\t0\toverall\t1\tlatency_ms\t6.25\t62.5" in found.out.splitlines()
    assert "left out\tanee\t0\tvgg\t4\tlatency_ms\t31.5\t2" in found.out.splitlines()
    assert "a.html" in found.err
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert main(list(WORDS)) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["anee", "12.50"] in lines
    assert ["anee-gat", "15.00"] in lines
    assert [(call["epochs"], call["hidden"], call["learning_rate"]) for call in asked] == [(30, 64, 0.003)] * 2


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "--protocol", "dnnperf", "--data", "labels.parquet"],
        ["evaluate", "--protocol", "dnnperf", "--out", "folder"],
        [*WORDS, "--lr", "fast"],
        [*WORDS, "--pretrain", "predicted.parquet"],
    ],
)
def test_wrong_use(words: list[str], asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] in {"usage.invalid", "train.settings"}
    assert asked == []


def test_an_interruption_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dippm.api.evaluate_dnnperf", interrupt)
    assert main(["evaluate", "--protocol", "dnnperf", "--data", "labels.parquet", "--out", "folder"]) == 130
    assert capsys.readouterr().err == "Interrupted. The same command goes on with what lies in 'folder'.\n"
