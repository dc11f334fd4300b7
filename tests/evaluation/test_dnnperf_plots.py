from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dippm.evaluation.dnnperf_plots import ACTUAL, ERRORS, draw_dnnperf_plots
from dippm.evaluation.dnnperf_report import DnnperfReport
from dippm.evaluation.dnnperf_sections import describe_dnnperf_report, title_of_dnnperf_report
from dippm.evaluation.report_page import render_html


def test_plots_and_html(dnnperf_report: DnnperfReport) -> None:
    pytest.importorskip("matplotlib")
    plots = draw_dnnperf_plots(dnnperf_report)
    assert set(plots) == {ACTUAL, ERRORS}
    assert all(b"<svg" in plot for plot in plots.values())
    assert draw_dnnperf_plots(dnnperf_report) == plots
    page = render_html(title_of_dnnperf_report(dnnperf_report), describe_dnnperf_report(dnnperf_report), plots)
    assert page.count("<img") == 2
    assert json.dumps(dnnperf_report.to_dict(), allow_nan=False)


def test_each_plot_is_of_its_own_figures(dnnperf_report: DnnperfReport) -> None:
    pytest.importorskip("matplotlib")
    plots = draw_dnnperf_plots(dnnperf_report)
    fewer = draw_dnnperf_plots(replace(dnnperf_report, rows=dnnperf_report.rows[1:]))
    assert fewer[ACTUAL] != plots[ACTUAL]
    assert fewer[ERRORS] == plots[ERRORS]
