"""The report of the DNNPerf protocol in words: every section, and what it says where there are no figures."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from dippm.datasets.graph_samples import GraphSamples
from dippm.evaluation.dnnperf_plots import ACTUAL, ERRORS, draw_dnnperf_plots
from dippm.evaluation.dnnperf_protocol import evaluate_dnnperf
from dippm.evaluation.dnnperf_report import DnnperfReport, DnnperfSettings
from dippm.evaluation.dnnperf_sections import describe_dnnperf_report, title_of_dnnperf_report
from dippm.evaluation.report_page import render_html, render_markdown
from dippm.models.dnnperf_registry import ANEE, DNNPERF_MODELS

TITLES = (
    "Data", "ANEE and what it is compared with", "Ablation: ANEE with a part taken out or exchanged",
    "Actual against predicted", "Unseen models", "Families left out in turn", "How it was made",
)  # fmt: skip


def make_report(samples: GraphSamples, settings: DnnperfSettings, *, best: str = ANEE) -> DnnperfReport:
    def predict(parts: npt.NDArray[np.int8], *, model: str, seed: int) -> npt.NDArray[np.float64]:
        spread = 0.01 if model == best else 0.1 + 0.02 * DNNPERF_MODELS.index(model)
        noise = np.random.default_rng([len(model), seed, len(parts)]).normal(0.0, spread, samples.targets.shape)
        return np.where(np.isfinite(samples.targets), samples.targets, 1.0) * np.exp(noise)

    return evaluate_dnnperf(
        samples, predict, settings, provenance={"command": "dippm evaluate", "software": {"x": "1"}}
    )


@pytest.fixture(scope="module")
def report(zoo: GraphSamples) -> DnnperfReport:
    return make_report(zoo, DnnperfSettings(seeds=2, left_out_families=3))


def page_of(report: DnnperfReport) -> str:
    return render_markdown(title_of_dnnperf_report(report), describe_dnnperf_report(report), {})


def test_every_section_is_there(report: DnnperfReport) -> None:
    sections = describe_dnnperf_report(report)
    assert tuple(section.title for section in sections) == TITLES
    for section in sections:
        assert section.text or section.tables
        for table in section.tables:
            assert table.rows
            assert {len(row) for row in table.rows} == {len(table.header)}


def test_figures_of_the_report_are_on_the_page(report: DnnperfReport) -> None:
    page = page_of(report)
    errors = [s.test["overall"]["latency_ms"].mre_percent for s in report.comparison if s.model == "birnn"]
    assert re.search(rf"\| birnn: .*\| {np.mean(errors):.2f} ± {np.std(errors):.2f} \|", page)
    for each in report.left_out:
        assert re.search(rf"\| {each.name} \| {each.rows} \| {each.errors[ANEE]['memory_mb'].mre_percent:.2f} \|", page)
    mean = np.mean([each.errors[ANEE]["memory_mb"].mre_percent for each in report.left_out])
    assert re.search(rf"\| mean of the families \|  \| {mean:.2f} \|", page)
    assert "The labels have none of VGG, OverFeat, ResNet-V2, GRU." in page
    assert f"| data hash | {report.dataset.data_hash} |" in page
    assert "| software | x 1 |" in page


def test_the_ranking_is_said_in_words(report: DnnperfReport, zoo: GraphSamples) -> None:
    own = report.mean_error(ANEE, "latency_ms")
    assert f"Step time: ANEE has an MRE of {own:.2f} %; ANEE comes first." in page_of(report)
    other = make_report(zoo, DnnperfSettings(), best="mlp")
    better = other.mean_error("mlp", "memory_mb")
    comparison, ablation = describe_dnnperf_report(other)[1:3]
    assert any(f"ahead of ANEE are mlp ({better:.2f} %)" in text for text in comparison.text)
    assert any("ANEE comes first" in text for text in ablation.text)


def test_what_is_not_there_is_said(report: DnnperfReport) -> None:
    page = page_of(replace(report, unseen=(), left_out=()))
    assert "The labels have none of AlexNet, VGG, OverFeat, ResNet-V2, GRU." in page
    assert "Not asked for" in page


def test_plots_and_html(report: DnnperfReport) -> None:
    pytest.importorskip("matplotlib")
    plots = draw_dnnperf_plots(report)
    assert set(plots) == {ACTUAL, ERRORS}
    assert all(b"<svg" in plot for plot in plots.values())
    assert draw_dnnperf_plots(report) == plots
    page = render_html(title_of_dnnperf_report(report), describe_dnnperf_report(report), plots)
    assert page.count("<img") == 2
    assert json.dumps(report.to_dict(), allow_nan=False)
