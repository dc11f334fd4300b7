"""Plots of the DNNPerf protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dippm.datasets.statistics_plots import BLUE, INK
from dippm.evaluation.dnnperf_report import DnnperfReport
from dippm.evaluation.plot_parts import METRIC_TITLES, Plot, draw_actual_against_predicted, draw_each, tidy
from dippm.models.dnnperf_registry import ANEE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ACTUAL", "ERRORS", "TITLES", "draw_dnnperf_plots"]

ACTUAL, ERRORS = "actual_against_predicted", "errors"
TITLES = {**METRIC_TITLES, "latency_ms": "step time, ms"}
"""What the axis of a metric says: the latency of a training step is its step time."""


def draw_dnnperf_plots(report: DnnperfReport) -> dict[str, bytes]:
    """Every plot by name, as SVG; equal reports give equal plots under one version of matplotlib.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    metrics = _metrics(report)
    models = len({score.model for score in (*report.comparison, *report.ablation)})
    wanted: dict[str, Plot[DnnperfReport]] = {
        ACTUAL: (3.2 * len(metrics) + 0.4, 3.3, _draw_actual),
        ERRORS: (3.2 * len(metrics) + 2.4, 1.0 + 0.25 * models, _draw_errors),
    }
    return draw_each(wanted, report)


def _metrics(report: DnnperfReport) -> list[str]:
    """Metrics that test rows have."""
    return [metric for metric in report.dataset.metrics if any(metric in row.predicted for row in report.rows)]


def _draw_actual(figure: Figure, report: DnnperfReport) -> None:
    metrics = _metrics(report)
    panels = figure.subplots(1, len(metrics), squeeze=False)[0]
    for panel, metric in zip(panels, metrics, strict=True):
        rows = [row for row in report.rows if metric in row.predicted]
        measured = np.array([row.measured[metric] for row in rows])
        predicted = np.array([row.predicted[metric] for row in rows])
        draw_actual_against_predicted(panel, measured, predicted, title=TITLES[metric])


def _draw_errors(figure: Figure, report: DnnperfReport) -> None:
    metrics = _metrics(report)
    panels = figure.subplots(1, len(metrics), squeeze=False, sharey=True)[0]
    names = list(dict.fromkeys(score.model for score in (*report.comparison, *report.ablation)))[::-1]
    for panel, metric in zip(panels, metrics, strict=True):
        errors = [report.mean_error(name, metric) or 0.0 for name in names]
        panel.barh(np.arange(len(names)), errors, color=[INK if name == ANEE else BLUE for name in names])
        panel.set_yticks(range(len(names)), labels=names)
        panel.set_xlabel(f"{TITLES[metric].split(',')[0]}: mean relative error, %")
        tidy(panel, "x")
