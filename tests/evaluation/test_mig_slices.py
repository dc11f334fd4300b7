"""Scores of the shipped predictor on published measurements of MIG slices."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from dippm.devices import find_device
from dippm.evaluation import published_runs
from dippm.evaluation.mig_slices import MigReport, SliceScore, evaluate_slices, main, sections_of
from dippm.evaluation.published import PublishedScore
from dippm.evaluation.published_runs import PUBLISHED_FOLDER, read_mig_slice_runs
from dippm.evaluation.report_page import render_markdown
from dippm.predictors.prediction import Prediction
from dippm.training import published_power, published_rates

FOLDER = Path(__file__).parents[2] / PUBLISHED_FOLDER
RUNS, LEFT_OUT = read_mig_slice_runs(FOLDER)
#: Batches of BERT in FP32 that are read in a test.
LARGE = ("128", "256")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The large batches of one model, and a row that is left out."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    result = tmp_path_factory.mktemp("published")
    for path in FOLDER.glob("*.toml"):
        shutil.copy(path, result)
    head, *lines = (FOLDER / "mig.csv").read_text(encoding="utf-8").splitlines()
    kept = [
        line
        for line in lines
        if (line.startswith("migperf-80gb-bert,") and line.split(",")[11] in (*LARGE, "1"))
        or line.startswith("openmodellab,distilbert")
    ]
    (result / "mig.csv").write_text("\n".join([head, *kept]) + "\n", encoding="utf-8")
    return result


@pytest.fixture(scope="module")
def report(folder: Path) -> MigReport:
    return evaluate_slices(folder)


def scored(slice_name: str, *, batch: int = 8, measured_ms: float = 10.0, predicted_ms: float = 10.0) -> PublishedScore:
    """A row with an answer."""
    run = RUNS[0]
    row = replace(run.row, batch=batch, latency_ms=measured_ms, used_mb=1000.0)
    prediction = SimpleNamespace(latency_ms=predicted_ms, memory_mb=1100.0, intervals={"latency_ms": (9.0, 11.0)})
    device = find_device(f"{slice_name}@A100-SXM4-80GB")
    return PublishedScore(run=replace(run, row=row, device=device), prediction=cast("Prediction", prediction))


def test_the_ratio_is_to_the_same_call_on_the_largest_slice() -> None:
    score = SliceScore(
        score=scored("1g.10gb", measured_ms=70.0, predicted_ms=84.0),
        largest=scored("7g.80gb", measured_ms=10.0, predicted_ms=10.5),
        host_ms=3.0,
    )
    assert score.profile == "1g"
    assert score.ratios == pytest.approx((7.0, 8.0))
    assert score.ratio_error_percent == pytest.approx(100 / 7)
    assert score.memory_error_percent == pytest.approx(10.0)


@pytest.mark.parametrize(("host_ms", "is_bound"), [(3.3, True), (3.4, False)])
def test_both_calls_must_be_bound_by_the_device_whatever_the_host(host_ms: float, is_bound: bool) -> None:
    largest = scored("7g.80gb", predicted_ms=10.0)
    score = SliceScore(score=scored("1g.10gb", predicted_ms=70.0), largest=largest, host_ms=host_ms)
    assert score.is_bound_by_device is is_bound
    assert not replace(score, largest=None).is_bound_by_device
    assert np.isnan(replace(score, largest=None).ratio_error_percent)


def test_the_page_says_how_far_off_each_slice_is() -> None:
    largest = scored("7g.80gb", measured_ms=10.0, predicted_ms=10.5)
    part = scored("1g.10gb", measured_ms=70.0, predicted_ms=84.0)
    scores = (
        SliceScore(score=part, largest=largest, host_ms=1.0),
        SliceScore(score=largest, largest=largest, host_ms=1.0),
        SliceScore(score=scored("2g.20gb"), largest=None, host_ms=1.0),
    )
    page = render_markdown("MIG", sections_of(MigReport(scores=scores, left_out=Counter({"unknown": 2}))), {})
    assert "| 1g | 1 | 20.0 | 20.0 | +20.0 | 0 | 1 | 10.0 | +10.0 |" in page
    assert "| 1g | 1 | 14.3 | 14.3 | +14.3 | 20.0 | +20.0 |" in page
    assert "| 7g | 1 | - | - | - | 5.0 | +5.0 |" in page
    assert "7.00 -> 8.00 (batch 8)" in page
    assert "| unknown | 2 |" in page
    assert "nan" not in page


def test_slices_follow_from_their_card(report: MigReport) -> None:
    clean = [score for score in report.scores if score.is_bound_by_device]
    assert {score.profile for score in clean} == {"1g", "2g", "3g", "7g"}
    assert {score.score.run.row.batch for score in clean} == {int(batch) for batch in LARGE}
    errors = np.abs([score.ratio_error_percent for score in clean])
    assert errors.max() < 4.0
    assert np.abs([score.score.error_percent for score in clean]).mean() < 10.0
    assert report.left_out == {"the number of tokens is not stated": 1}


def test_the_command_writes_the_page(
    report: MigReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders: list[Path] = []
    monkeypatch.setattr("dippm.evaluation.mig_slices.evaluate_slices", lambda folder: folders.append(folder) or report)
    main(["--folder", "somewhere", "--report", str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert page.startswith("# MIG slices\n")
    assert "| bert-base-multilingual-cased, 64 tokens, inference, fp32 | 1g.10gb@A100-SXM4-80GB | 256 |" in page
    main([])
    assert capsys.readouterr().out == page
    assert folders == [Path("somewhere"), PUBLISHED_FOLDER]


def test_no_fit_reads_a_row_of_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_folder: Path) -> Any:
        raise AssertionError("the table of slices was read")

    monkeypatch.setattr(published_runs, "read_mig_slices", refuse)
    runs = [*published_rates.read_published_runs(FOLDER)[0], *published_power.read_power_runs(FOLDER)[0]]
    assert len(runs) > 1000
    assert not [run for run in runs if run.device.is_mig_slice]
