"""Plots of the DIPPM protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dippm.datasets.statistics_plots import BLUE, INK
from dippm.evaluation.dippm_report import DippmReport
from dippm.evaluation.plot_parts import (
    METRIC_TITLES,
    MOST_MARKS,
    Plot,
    draw_actual_against_predicted,
    draw_each,
    tidy,
    write_plainly,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DISTRIBUTION", "FAMILIES", "FIGURE_4", "SIZES", "TABLE_4", "draw_plots"]

FIGURE_4, TABLE_4, FAMILIES = "actual_against_predicted", "networks", "families"
SIZES, DISTRIBUTION = "graph_sizes", "error_distribution"

_MOST_FAMILIES = 40


def draw_plots(report: DippmReport) -> dict[str, bytes]:
    """Every plot by name, as SVG; equal reports give equal plots under one version of matplotlib.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    metrics = len(report.dataset.metrics)
    families = min(len(report.families), _MOST_FAMILIES)
    wanted: dict[str, Plot[DippmReport]] = {
        FIGURE_4: (3.2 * metrics + 0.4, 3.3, _draw_figure_4),
        TABLE_4: (6.0, 3.0, _draw_networks),
        FAMILIES: (6.5, 1.2 + 0.2 * families, _draw_families),
        SIZES: (3.2 * metrics + 0.4, 3.0, _draw_sizes),
        DISTRIBUTION: (5.5, 3.2, _draw_distribution),
    }
    return draw_each(wanted, report)


def _draw_figure_4(figure: Figure, report: DippmReport) -> None:
    for panel, metric in _panels(figure, report):
        rows = [row for row in report.rows if metric in row.measured]
        measured = np.array([row.measured[metric] for row in rows])
        predicted = np.array([row.predicted[metric] for row in rows])
        draw_actual_against_predicted(panel, measured, predicted, title=METRIC_TITLES[metric])


def _draw_networks(figure: Figure, report: DippmReport) -> None:
    panel = figure.subplots()
    names = list(dict.fromkeys(score.model for score in report.networks))
    for offset, part, color in ((-0.2, "training", BLUE), (0.2, "test", INK)):
        means = [
            float(np.mean([score.errors[part]["mean"] for score in report.networks if score.model == name]))
            for name in names
        ]
        panel.bar(np.arange(len(names)) + offset, means, width=0.38, color=color, label=part)
    panel.set_xticks(range(len(names)), labels=names)
    panel.set_ylabel("mean absolute error, %")
    # Above the bars, which reach as high as they like.
    figure.legend(frameon=False, loc="outside upper right", ncols=2)
    tidy(panel, "y")


def _draw_families(figure: Figure, report: DippmReport) -> None:
    panel = figure.subplots()
    # The vertical axis points up: the largest error comes first when read from above.
    families = report.families[:_MOST_FAMILIES][::-1]
    places = np.arange(len(families))
    panel.barh(places, [each.errors["mean"] for each in families], color=BLUE)
    panel.set_yticks(places, labels=[f"{each.name} ({each.rows})" for each in families])
    panel.set_ylim(-0.6, len(families) - 0.4)
    panel.set_xlabel("mean absolute error, % (rows in brackets)")
    tidy(panel, "x")


def _draw_sizes(figure: Figure, report: DippmReport) -> None:
    for panel, metric in _panels(figure, report):
        rows = [row for row in report.rows if metric in row.measured]
        sizes = [row.operators for row in rows]
        errors = [100.0 * abs(row.predicted[metric] / row.measured[metric] - 1.0) for row in rows]
        panel.scatter(sizes, errors, s=7, color=INK, alpha=0.5, linewidths=0, rasterized=len(rows) > MOST_MARKS)
        panel.set(
            xscale="log", xlabel="operators", ylabel=f"absolute error of {METRIC_TITLES[metric].split(',')[0]}, %"
        )
        panel.set_yscale("symlog", linthresh=1.0)
        panel.set_ylim(bottom=0)
        write_plainly(panel.xaxis)
        write_plainly(panel.yaxis)
        tidy(panel, "y")


def _draw_distribution(figure: Figure, report: DippmReport) -> None:
    panel = figure.subplots()
    for metric, style in zip(report.dataset.metrics, ("-", "--", ":"), strict=False):
        errors = sorted(
            100.0 * abs(row.predicted[metric] / row.measured[metric] - 1.0)
            for row in report.rows
            if metric in row.measured
        )
        shares = 100.0 * np.arange(1, len(errors) + 1) / max(len(errors), 1)
        panel.step(errors, shares, where="post", color=INK, linestyle=style, linewidth=1.2, label=METRIC_TITLES[metric])
    panel.set(xlabel="absolute error, %", ylabel="test rows below it, %", ylim=(0, 102))
    panel.set_xscale("symlog", linthresh=10.0)
    panel.set_xlim(left=0)
    write_plainly(panel.xaxis)
    panel.legend(frameon=False)
    tidy(panel, "both")


def _panels(figure: Figure, report: DippmReport) -> list[tuple[Axes, str]]:
    """A panel for each metric that a test row has."""
    metrics = [name for name in report.dataset.metrics if any(name in row.measured for row in report.rows)]
    panels = figure.subplots(1, max(len(metrics), 1), squeeze=False)[0]
    return list(zip(panels, metrics, strict=False))
