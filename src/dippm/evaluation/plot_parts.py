"""What plots of several reports share."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from dippm.datasets.statistics_plots import GREY, INK, open_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

__all__ = ["METRIC_TITLES", "MOST_MARKS", "Plot", "draw_actual_against_predicted", "draw_each", "tidy", "write_plainly"]

METRIC_TITLES = {"latency_ms": "latency, ms", "energy_j": "energy, J", "memory_mb": "memory, MiB"}
"""What the axis of a metric says."""

MOST_MARKS = 1000
"""Beyond it a plot of separate marks is larger than its picture."""

_Report = TypeVar("_Report")
Plot = tuple[float, float, Callable[["Figure", _Report], None]]
"""Width and height of a figure, inches, and what draws a report on it."""


def draw_each(plots: Mapping[str, Plot[_Report]], report: _Report) -> dict[str, bytes]:
    """Every plot of a report by its name, as SVG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    drawn = {}
    for name, (width, height, draw) in plots.items():
        target = io.BytesIO()
        with open_figure(width, height, target) as figure:
            draw(figure, report)
        drawn[name] = target.getvalue()
    return drawn


def draw_actual_against_predicted(
    panel: Axes, measured: npt.NDArray[np.float64], predicted: npt.NDArray[np.float64], *, title: str
) -> None:
    """Marks along the diagonal, and a band of 20 % either way.

    Shapes:
        measured, predicted: [n], n at least 1.
    """
    ends = np.array([min(measured.min(), predicted.min()) / 1.2, max(measured.max(), predicted.max()) * 1.2])
    panel.fill_between(ends, ends * 0.8, ends * 1.2, color=GREY, alpha=0.2, linewidth=0)
    panel.plot(ends, ends, color=GREY, linewidth=0.8)
    panel.scatter(measured, predicted, s=7, color=INK, alpha=0.5, linewidths=0, rasterized=len(measured) > MOST_MARKS)
    panel.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    write_plainly(panel.xaxis)
    write_plainly(panel.yaxis)
    panel.set(xlabel=f"actual {title}", ylabel="predicted")


def write_plainly(axis: Axis) -> None:
    """Numbers without powers of ten, and some between them where a scale has less than a decade."""
    from matplotlib.ticker import FuncFormatter, LogFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))


def tidy(panel: Axes, axis: str) -> None:
    """Light lines behind the marks along an axis, and no frame."""
    panel.grid(axis=axis, color="#d9dee3", linewidth=0.6)  # type: ignore[arg-type]
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
