from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dippm.evaluation.dippm_plots import DISTRIBUTION, FAMILIES, FIGURE_4, SIZES, TABLE_4, draw_plots
from dippm.evaluation.dippm_report import DippmReport
from dippm.evaluation.dippm_sections import describe_report, title_of_report
from dippm.evaluation.report_page import render_html, render_markdown

pytest.importorskip("matplotlib")


def test_pages_hold_the_plots_and_load_nothing(dippm_report: DippmReport) -> None:
    plots = draw_plots(dippm_report)
    assert plots == draw_plots(dippm_report)
    sections = describe_report(dippm_report)
    assert {section.plot for section in sections} - {""} == set(plots)
    page = render_html(title_of_report(dippm_report), sections, plots)
    sources = re.findall(r'src="([^"]{0,26})', page)
    assert sources == ["data:image/svg+xml;base64,"] * len(plots)
    assert not re.search(r"<(script|link|iframe)|https?://|@import|url\(", page)
    markdown = render_markdown(title_of_report(dippm_report), sections, {name: f"plots/{name}.svg" for name in plots})
    assert all(f"](plots/{name}.svg)" in markdown for name in plots)


def test_every_plot_is_a_picture_of_its_figures(dippm_report: DippmReport) -> None:
    plots = draw_plots(dippm_report)
    assert plots.keys() == {FIGURE_4, TABLE_4, FAMILIES, SIZES, DISTRIBUTION}
    assert all(b"<svg" in content[:2000] and content.rstrip().endswith(b"</svg>") for content in plots.values())
    # One panel more where one metric more was measured.
    assert len(plots[FIGURE_4]) > len(draw_plots(_of_one_metric(dippm_report))[FIGURE_4])


def _of_one_metric(report: DippmReport) -> DippmReport:
    return replace(report, dataset=replace(report.dataset, metrics=report.dataset.metrics[:1]))


def test_other_figures_are_another_plot(dippm_report: DippmReport) -> None:
    fewer = draw_plots(replace(dippm_report, rows=dippm_report.rows[1:]))
    plots = draw_plots(dippm_report)
    assert fewer[FIGURE_4] != plots[FIGURE_4]
    assert fewer[TABLE_4] == plots[TABLE_4]
