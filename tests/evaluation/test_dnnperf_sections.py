"""The report of the DNNPerf protocol in words: every section, and what it says where there are no figures."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np

from dippm.datasets.graph_samples import GraphSamples
from dippm.evaluation.dnnperf_report import DnnperfReport, DnnperfSettings
from dippm.evaluation.dnnperf_sections import describe_dnnperf_report, title_of_dnnperf_report
from dippm.evaluation.report_page import render_markdown
from dippm.models.dnnperf_registry import ANEE

TITLES = (
    "Data", "ANEE and what it is compared with", "Ablation: ANEE with a part taken out or exchanged",
    "Actual against predicted", "Unseen models", "Families left out in turn", "How it was made",
)  # fmt: skip


def page_of(report: DnnperfReport) -> str:
    return render_markdown(title_of_dnnperf_report(report), describe_dnnperf_report(report), {})


def test_every_section_is_there(dnnperf_report: DnnperfReport) -> None:
    sections = describe_dnnperf_report(dnnperf_report)
    assert tuple(section.title for section in sections) == TITLES
    for section in sections:
        assert section.text or section.tables
        for table in section.tables:
            assert table.rows
            assert {len(row) for row in table.rows} == {len(table.header)}


def test_figures_of_the_report_are_on_the_page(dnnperf_report: DnnperfReport) -> None:
    page = page_of(dnnperf_report)
    errors = [s.test["overall"]["latency_ms"].mre_percent for s in dnnperf_report.comparison if s.model == "birnn"]
    assert re.search(rf"\| birnn: .*\| {np.mean(errors):.2f} ± {np.std(errors):.2f} \|", page)
    for each in dnnperf_report.left_out:
        assert re.search(rf"\| {each.name} \| {each.rows} \| {each.errors[ANEE]['memory_mb'].mre_percent:.2f} \|", page)
    mean = np.mean([each.errors[ANEE]["memory_mb"].mre_percent for each in dnnperf_report.left_out])
    assert re.search(rf"\| mean of the families \|  \| {mean:.2f} \|", page)
    assert "The labels have none of VGG, OverFeat, ResNet-V2, GRU." in page
    assert f"| data hash | {dnnperf_report.dataset.data_hash} |" in page
    assert "| software | x 1 |" in page


def test_the_ranking_is_said_in_words(
    dnnperf_report: DnnperfReport, zoo: GraphSamples, make_dnnperf_report: Any
) -> None:
    own = dnnperf_report.mean_error(ANEE, "latency_ms")
    assert f"Step time: ANEE has an MRE of {own:.2f} %; ANEE comes first." in page_of(dnnperf_report)
    other = make_dnnperf_report(zoo, DnnperfSettings(), best="mlp")
    better = other.mean_error("mlp", "memory_mb")
    comparison, ablation = describe_dnnperf_report(other)[1:3]
    assert any(f"ahead of ANEE are mlp ({better:.2f} %)" in text for text in comparison.text)
    assert any("ANEE comes first" in text for text in ablation.text)


def test_what_is_not_there_is_said(dnnperf_report: DnnperfReport) -> None:
    page = page_of(replace(dnnperf_report, unseen=(), left_out=()))
    assert "The labels have none of AlexNet, VGG, OverFeat, ResNet-V2, GRU." in page
    assert "Not asked for" in page
