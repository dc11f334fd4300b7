"""Plots of what a set of labels holds: latency, energy and memory of every family."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dippm.datasets.statistics import METRICS
from dippm.datasets.store.label import Label
from dippm.errors import MissingExtraError, UsageError
from dippm.measuring.measurement import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["BLUE", "GREY", "INK", "open_figure", "plot_distributions"]

_TITLES = {"latency_ms": "latency, ms", "energy_j": "energy, J", "memory_mb": "memory, MiB"}
INK, GREY, BLUE = "#1f2933", "#8a949e", "#9ec5e8"
"""Colours of plots."""
_STYLE: Mapping[Any, Any] = {
    "svg.hashsalt": "dippm",  # else element names in the file are random
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "font.size": 9,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
_Values = dict[str, dict[str, list[float]]]  # family to metric to values


def plot_distributions(labels: Iterable[Label], folder: str | Path) -> list[Path]:
    """Draw one figure for each device, mode and precision: a row per family, a panel per metric, logarithmic axes.

    A box spans the quartiles with the median as its line, whiskers reach from 5 % to 95 %, dots are the values beyond.
    Equal labels give equal files under one version of matplotlib.

    Args:
        labels: Labels; only those that ended well are drawn.
        folder: Where the files go; made where it is missing.

    Returns:
        The SVG files, by device, mode and precision.

    Raises:
        UsageError: ``plot.unwritable``, or ``plot.empty`` where no label ended well.
        MissingExtraError: matplotlib is not installed.
    """
    _need_matplotlib()
    gathered: dict[tuple[str, str, str], _Values] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for label in labels:
        measurement, conditions = label.measurement, label.configuration.conditions
        if measurement.outcome is not Outcome.OK:
            continue
        group = gathered[measurement.device, conditions.mode.value, conditions.precision.value]
        for metric in METRICS:
            value = getattr(measurement, metric)
            # A logarithmic axis has no place for a zero; a counter that did not tick gives one.
            if value is not None and value > 0:
                group[label.recipe.family][metric].append(value)
    if not gathered:
        raise UsageError("No label ended well: there is nothing to draw.", code="plot.empty")
    folder = Path(folder)
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for (device, mode, precision), values in sorted(gathered.items()):
            slug = re.sub(r"[^a-z0-9]+", "-", f"{device} {mode} {precision}".lower()).strip("-")
            path = folder / f"{slug}.svg"
            _draw(values, title=f"{device}, {mode}, {precision}", path=path)
            files.append(path)
    except OSError as exc:
        raise UsageError(
            f"Plots cannot be written to '{folder}': {exc.strerror or exc}.", code="plot.unwritable"
        ) from exc
    return files


@contextmanager
def open_figure(width: float, height: float, target: Path | IO[bytes]) -> Iterator[Figure]:
    """A figure in the project's style to draw on, written as SVG at the end; equal drawings give equal files.

    Args:
        width: Width, inches.
        height: Height, inches.
        target: Where it goes.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    _need_matplotlib()
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Figures are made without pyplot, whose backend and open figures are the process's.
    with mpl.rc_context():
        mpl.rcdefaults()  # a user's own style would change the files
        mpl.rcParams.update(_STYLE)
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        figure.savefig(target, format="svg", dpi=150, facecolor="white", metadata={"Date": None, "Creator": None})


def _need_matplotlib() -> None:
    if find_spec("matplotlib") is None:
        raise MissingExtraError(package="matplotlib", extra="measure", purpose="draw plots")


def _draw(values: _Values, *, title: str, path: Path) -> None:
    families = sorted(values, reverse=True)  # the vertical axis points up
    metrics = [metric for metric in METRICS if any(values[family].get(metric) for family in families)]
    panel_count = max(len(metrics), 1)
    height = 1.1 + 0.28 * len(families)
    with open_figure(1.6 + 3.0 * panel_count, height, path) as figure:
        panels = figure.subplots(1, panel_count, sharey=True, squeeze=False)[0]
        for panel, metric in zip(panels, metrics, strict=False):
            _draw_panel(panel, [values[family].get(metric, []) for family in families], label=_TITLES[metric])
        counts = [max(map(len, values[family].values()), default=0) for family in families]
        panels[0].set_yticks(
            range(1, len(families) + 1),
            labels=[f"{family} ({count})" for family, count in zip(families, counts, strict=True)],
        )
        figure.suptitle(title, fontsize=10)


def _draw_panel(panel: Axes, rows: list[list[float]], *, label: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogFormatter

    drawn = [(position, row) for position, row in enumerate(rows, start=1) if row]
    panel.boxplot(
        [row for _, row in drawn],
        positions=[position for position, _ in drawn],
        orientation="horizontal",
        whis=(5, 95),
        widths=0.6,
        patch_artist=True,
        boxprops={"facecolor": BLUE, "edgecolor": INK, "linewidth": 0.7},
        medianprops={"color": INK, "linewidth": 1.3},
        whiskerprops={"color": INK, "linewidth": 0.7},
        capprops={"color": INK, "linewidth": 0.7},
        flierprops={"marker": "o", "markersize": 1.8, "markerfacecolor": GREY, "markeredgecolor": "none"},
    )
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
    panel.set_xlabel(label)
    panel.set_ylim(0.4, len(rows) + 0.6)
    panel.grid(axis="x", color="#d9dee3", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
