"""The report in words: every section, and what it says where there are no figures."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np

from dippm.datasets.graph_samples import GraphSamples
from dippm.evaluation.dippm_protocol import evaluate_dippm
from dippm.evaluation.dippm_report import DippmReport, ProtocolSettings
from dippm.evaluation.dippm_sections import describe_report, title_of_report
from dippm.evaluation.report_page import render_markdown

TITLES = (
    "Data", "Table 4: networks compared", "Figure 4: the long run, actual against predicted",
    "Seen, partly seen and unseen architectures", "Table 5: MIG slices", "Error by family", "Families left out in turn",
    "Error against size of the graph", "Distribution of errors", "How it was made",
)  # fmt: skip


def test_every_section_is_there(dippm_report: DippmReport) -> None:
    sections = describe_report(dippm_report)
    assert tuple(section.title for section in sections) == TITLES
    assert all(section.text or section.tables for section in sections)
    for section in sections:
        for table in section.tables:
            assert table.rows
            assert {len(row) for row in table.rows} == {len(table.header)}


def test_figures_of_the_report_are_on_the_page(dippm_report: DippmReport) -> None:
    page = render_markdown(title_of_report(dippm_report), describe_report(dippm_report), {})
    worst = dippm_report.left_out[0]
    assert f"The worst is {worst.name} with {worst.errors['mean']:.1f} % of {worst.rows} rows." in page
    small = replace(worst, rows=2)
    second = dippm_report.left_out[1]
    told = replace(dippm_report, left_out=(small, *dippm_report.left_out[1:]))
    page = render_markdown(title_of_report(told), describe_report(told), {})
    assert f"of 2 rows; of those with 10 rows or more {second.name} with {second.errors['mean']:.1f} %." in page
    means = [score.test_mean for score in dippm_report.networks if score.model == "gat"]
    assert re.search(rf"\| gat \|.*\| {np.mean(means):.2f} ± {np.std(means):.2f} \|", page)
    assert f"| data hash | {dippm_report.dataset.data_hash} |" in page
    assert "| software | x 1.0 |" in page


def test_the_ranking_is_said_in_words(dippm_report: DippmReport) -> None:
    def with_errors(**errors: tuple[float, ...]) -> str:
        first = [score for score in dippm_report.networks if score.seed == 0]
        scores = tuple(
            replace(score, seed=seed, errors={part: {"mean": errors[score.model][seed]} for part in score.errors})
            for score in first
            for seed in range(len(errors[score.model]))
        )
        return " ".join(describe_report(replace(dippm_report, networks=scores))[1].text)

    text = with_errors(pmgns=(3, 5), gat=(4, 6), gcn=(2, 6), gin=(3, 6), mlp=(2.5, 4), gbdt=(1, 1))
    assert "pmgns has 4.0 %. Worse on every seed: gat. Better: mlp. Neither: gcn, gin." in text
    text = with_errors(pmgns=(3,), gat=(4,), gcn=(3,), gin=(5,), mlp=(2.5,), gbdt=(1,))
    assert "Worse on this one seed, which tells little: gat, gin. Better: mlp. Neither: gcn." in text


def test_sections_without_figures_say_why(zoo: GraphSamples, predict_with_noise: Any) -> None:
    without_memory = np.array([np.nan, 1.0, np.nan])
    samples = replace(zoo, targets=zoo.targets * without_memory)
    sections = describe_report(evaluate_dippm(samples, predict_with_noise, ProtocolSettings()))
    page = render_markdown("x", sections, {})
    # A mean over a single figure would say the same twice.
    assert sections[1].tables[0].header == ("model", "training", "validation", "test")
    assert sections[5].tables[0].header == ("family", "rows", "latency", "gbdt, mean")
    assert "Memory was not measured" in page
    assert "Not asked for" in page
    assert "how noisy the labels are is unknown" in page


def test_the_rule_of_another_device_is_said_to_be_so(dippm_report: DippmReport) -> None:
    values = dippm_report.to_dict()
    assert json.loads(json.dumps(values, allow_nan=False))["dataset"]["device"] == "A100-SXM4-40GB"
    text = " ".join(describe_report(dippm_report)[4].text)
    assert "the rule of" not in text
