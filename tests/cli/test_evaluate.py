"""``dippm evaluate``: what the protocols' reports look like."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dippm.cli import main


def test_evaluate_prints_what_the_report_says(
    monkeypatch: pytest.MonkeyPatch,
    run_json: Callable[..., dict[str, Any]],
    run_columns: Callable[..., list[dict[str, str]]],
    run_table: Callable[..., str],
) -> None:
    from dippm.evaluation.kernels import KernelReport, KernelScore

    def score(protocol: str, method: str, error: float) -> KernelScore:
        return KernelScore(
            protocol=protocol, table="linear", device="A100", method=method, mape=error, median_ape=error / 2, rows=969
        )

    scores = (score("split", "dippm", 4.4), score("split", "gbdt", 5.7), score("left out", "dippm", 20.2))
    asked: list[tuple[object, ...]] = []

    def evaluate(protocol: str, *, seed: int, retrain: bool) -> KernelReport:
        asked.append((protocol, seed, retrain))
        return KernelReport(seed=seed, scores=scores)

    monkeypatch.setattr("dippm.api.evaluate", evaluate)
    answer = run_json("evaluate", "--protocol", "kernels", "--seed", "3", "--retrain")
    assert asked == [("kernels", 3, True)]
    assert [each["mape"] for each in answer["scores"]] == [4.4, 5.7, 20.2]
    assert len(run_columns("evaluate")) == 3
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    lines = run_table("evaluate").splitlines()
    assert any(line.split() == ["linear", "A100", "969", "4.4", "5.7"] for line in lines)
    assert any(line.split() == ["linear", "A100", "969", "10.1"] for line in lines)


def test_evaluate_knows_its_protocols(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--protocol", "tea-leaves", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "protocol.unknown"
