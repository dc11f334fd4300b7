"""Scores of the shipped predictor on NVIDIA's DeepLearningExamples."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dippm.costs.conditions import Layout
from dippm.evaluation import published_runs
from dippm.evaluation.deep_learning_examples import (
    ExamplesReport,
    build_network,
    evaluate_examples,
    main,
    read_example,
    sections_of,
)
from dippm.evaluation.published import PublishedScore
from dippm.evaluation.published_runs import PUBLISHED_FOLDER, read_example_runs
from dippm.evaluation.report_page import render_markdown
from dippm.predictors.prediction import Prediction
from dippm.training import published_power, published_rates

FOLDER = Path(__file__).parents[2] / PUBLISHED_FOLDER
RUNS, LEFT_OUT = read_example_runs(FOLDER)
NEEDS_TORCH = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("torchvision") is None, reason="torch and torchvision are not installed"
)


def scored(*, measured_ms: float, predicted_ms: float) -> PublishedScore:
    run = RUNS[0]
    prediction = SimpleNamespace(latency_ms=predicted_ms, intervals={"latency_ms": (9.0, 11.0)})
    row = replace(run.row, latency_ms=measured_ms)
    return PublishedScore(run=replace(run, row=row), prediction=cast("Prediction", prediction))


def test_rows_are_questions() -> None:
    assert len(RUNS) == 170
    assert LEFT_OUT == {"how long the samples of a batch are is not stated": 9}
    assert not [run for run in RUNS if run.is_fitted]
    softwares = {(run.row.source, str(run.software)) for run in RUNS}
    assert ("dle-transformer-xl", "torch 1.6+cu110") in softwares
    assert ("dle-nnunet", "torch 1.14+cu118") in softwares
    assert {run.conditions.layout for run in RUNS if run.row.model == "dle:ssd300"} == {Layout.NHWC}


@NEEDS_TORCH
@pytest.mark.parametrize("model", sorted({run.row.model for run in RUNS}))
def test_each_network_takes_what_its_row_says(model: str) -> None:
    row = next(run.row for run in RUNS if run.row.model == model)
    network, inputs = build_network(row)
    assert all(parameter.is_meta for parameter in network.parameters())
    assert len(inputs.positional) == len(signature(network.forward).parameters)


@NEEDS_TORCH
def test_a_graph_grows_with_the_batch() -> None:
    run = next(run for run in RUNS if run.row.model == "dle:ncf")
    graph = read_example(run)
    assert [dim.at(8) for dim in graph.tensors[graph.outputs[0]].shape] == [8, 1]
    assert not graph.warnings


@NEEDS_TORCH
def test_a_speech_model_of_wide_filters_is_met(tmp_path: Path) -> None:
    """In 16 bits its depthwise convolutions take what they take in FP32, and had taken a sixth of it."""
    head, *lines = (FOLDER / "deep_learning_examples.csv").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.startswith("dle-quartznet") and (",72,1680," in line or ",16,1680," in line)]
    (tmp_path / "deep_learning_examples.csv").write_text("\n".join([head, *kept]) + "\n", encoding="utf-8")
    report = evaluate_examples(tmp_path)
    errors = {(score.run.row.mode, score.run.row.precision): score.error_percent for score in report.scores}
    assert len(errors) == 4
    assert abs(errors["inference", "fp16"]) < 15.0
    assert abs(errors["training", "amp"]) < 25.0
    assert all(score.is_covered for score in report.scores)


def test_the_page_says_how_far_off_each_model_is() -> None:
    scores = (scored(measured_ms=10.0, predicted_ms=10.5), scored(measured_ms=20.0, predicted_ms=10.0))
    report = ExamplesReport(scores=scores, left_out=Counter({"unknown": 2}))
    page = render_markdown("Examples", sections_of(report), {})
    assert "| dle:nnunet-2d | 2 | 27.5 | 27.5 | -22.5 | 50 | 50 |" in page
    assert "| unknown | 2 |" in page
    assert "| 10 | 10.5 | +5.0 | yes |" in page


def test_the_command_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = ExamplesReport(scores=(scored(measured_ms=10.0, predicted_ms=10.5),), left_out=Counter())
    folders: list[Path] = []
    monkeypatch.setattr(
        "dippm.evaluation.deep_learning_examples.evaluate_examples", lambda folder: folders.append(folder) or report
    )
    main(["--folder", "somewhere", "--report", str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert page.startswith("# NVIDIA's DeepLearningExamples\n")
    main([])
    assert capsys.readouterr().out == page
    assert folders == [Path("somewhere"), PUBLISHED_FOLDER]


def test_no_fit_reads_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_folder: Path) -> Any:
        raise AssertionError("the table was read")

    monkeypatch.setattr(published_runs, "read_deep_learning_examples", refuse)
    runs = [*published_rates.read_published_runs(FOLDER)[0], *published_power.read_power_runs(FOLDER)[0]]
    assert len(runs) > 1000
    assert not [run for run in runs if run.row.model.startswith("dle:")]
