"""``dippm evaluate --protocol dippm``: what it asks for and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dippm.api import DippmEvaluation
from dippm.cli import main
from dippm.evaluation.dippm_report import DatasetSummary, DippmReport, GroupScore, NetworkScore, ProtocolSettings
from dippm.evaluation.novelty import Novelty


def score(model: str, error: float, novelty: Novelty | None = None) -> NetworkScore:
    errors = {"latency_ms": error, "mean": error}
    return NetworkScore(
        model=model,
        seed=0,
        rows={"training": 7, "validation": 2, "test": 1},
        errors={"training": {"latency_ms": error / 2, "mean": error / 2}, "validation": errors, "test": errors},
        novelty=novelty,
    )


REPORT = DippmReport(
    dataset=DatasetSummary(
        device="GPU", conditions="inference, fp32", mode="inference", precision="fp32", source="dippm",
        software=("torch",), metrics=("latency_ms",), rows=10, models=5, families=2, operators=(1, 2, 3), unread=0,
        data_hash="0", noise=(),
    ),
    settings=ProtocolSettings(family_groups=1),
    networks=(score("pmgns", 12.5), score("gbdt", 6.25)),
    long_run=score("pmgns", 3.5),
    baseline=score("gbdt", 6.25),
    constant=score("constant", 99.0),
    by_novelty=(score("pmgns", 22.5, Novelty.UNSEEN),),
    rows=(), families=(), sizes=(), spreads=(), mig=(), mig_examples=(),
    left_out=(GroupScore(name="bert", rows=4, errors={"mean": 31.5}, baseline_errors={}),),
    provenance={},
)  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []

    def evaluate_dippm(data: str, out: Path, **options: Any) -> DippmEvaluation:
        options["on_graph"](1, 2)
        options["on_run"](0, 2, "pmgns")
        calls.append({"data": data, "out": out, **options})
        return DippmEvaluation(report=REPORT, files=(out / "a.md", out / "a.html"))

    monkeypatch.setattr("dippm.api.evaluate_dippm", evaluate_dippm)
    return calls


WORDS = ("evaluate", "--protocol", "dippm", "--data", "labels.parquet", "--out", "folder")


def test_options_reach_the_protocol(asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--seeds", "3", "--seed", "4", "--lr", "auto", "--hidden", "64", "--mode", "training", "--epochs", "5")
    others = ("--long-epochs", "50", "--leave-families-out", "2", "--mixed-precision", "--runtime", "cuda-graph")
    others += ("--pretrain", "predicted.parquet", "--pretrain-epochs", "7")
    assert main([*WORDS, *options, *others, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["protocol"] == "dippm"
    assert answer["files"] == [str(Path("folder/a.md")), str(Path("folder/a.html"))]
    assert answer["long_run"]["errors"]["test"]["mean"] == 3.5
    (call,) = asked
    wanted = {
        "data": "labels.parquet", "out": Path("folder"), "seeds": 3, "seed": 4, "learning_rate": "auto", "hidden": 64,
        "mode": "training", "epochs": 5, "long_epochs": 50, "leave_families_out": 2, "device": None,
        "mixed_precision": True, "runtime": "cuda-graph", "pretrain": "predicted.parquet", "pretrain_epochs": 7,
    }  # fmt: skip
    assert {name: call[name] for name in wanted} == wanted


def test_columns_and_table(
    asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "0")
    assert main(list(WORDS)) == 0
    found = capsys.readouterr()
    assert "networks\tgbdt\t0\t\tmean\t3.125\t6.25\t6.25" in found.out.splitlines()
    assert "novelty\tpmgns\t0\tunseen\tlatency_ms\t11.25\t22.5\t22.5" in found.out.splitlines()
    assert "a.html" in found.err
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert main(list(WORDS)) == 0
    text = capsys.readouterr().out
    assert any(line.split() == ["pmgns,", "long", "run", "1.75", "3.50", "3.50"] for line in text.splitlines())
    assert "the worst is bert with 31.5 %" in text
    assert [(call["learning_rate"], call["mixed_precision"]) for call in asked] == [(0.003, False)] * 2


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "--protocol", "dippm", "--data", "labels.parquet"],
        ["evaluate", "--protocol", "dippm", "--out", "folder"],
        [*WORDS, "--lr", "fast"],
    ],
)
def test_wrong_use(words: list[str], asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] in {"usage.invalid", "train.settings"}
    assert asked == []


def test_an_interruption_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dippm.api.evaluate_dippm", interrupt)
    assert main(["evaluate", "--protocol", "dippm", "--data", "labels.parquet", "--out", "folder"]) == 130
    assert capsys.readouterr().err == "Interrupted. The same command goes on with what lies in 'folder'.\n"
