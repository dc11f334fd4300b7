"""The files of an exploration: trials as a table, the front as data, as a plot and as a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from dippm.api.exploration.exploration import Exploration
from dippm.api.exploration.objectives import METRICS, TITLES, UNCERTAIN, Objective, round_metric
from dippm.api.exploration.trials import Trial
from dippm.api.report_files import write_report
from dippm.errors import UsageError
from dippm.evaluation.report_page import Section, Table
from dippm.predictors.prediction import format_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["write_files"]

_FRONT, _TRIALS, _PLOT = "front", "trials.csv", "trade_offs"
_MOST_COLUMNS = 3


def write_files(exploration: Exploration, folder: Path) -> Exploration:
    """Write ``trials.csv``, ``front.json``, ``front.md``, ``front.html`` and the plot.

    Returns:
        The exploration with its files.

    Raises:
        UsageError: ``explore.unwritable``, ``report.unwritable``.
    """
    table = folder / _TRIALS
    try:
        table.write_text(_trials_table(exploration), encoding="utf-8", newline="")
    except OSError as exc:
        raise UsageError(f"'{table}' cannot be written: {exc.strerror or exc}.", code="explore.unwritable") from exc
    written = write_report(
        folder,
        _FRONT,
        title=f"Trade-offs on {exploration.plan['device']}",
        sections=_describe(exploration),
        plots={_PLOT: _draw(exploration)} if exploration.front else {},
        figures={"schema": 1, **exploration.to_dict()},
    )
    return replace(exploration, files=(*written, table))


def _trials_table(exploration: Exploration) -> str:
    """All trials as CSV; equal searches give equal files."""
    names = [choice.name for choice in exploration.space.choices]
    metrics = [name for name in METRICS if any(name in trial.outcome.values for trial in exploration.trials)]
    ends = [name for name in metrics if name in UNCERTAIN]
    on_front = {trial.number: at for at, trial in enumerate(exploration.front, start=1)}
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(
        ["trial", "status", "front", *names, *metrics]
        + [f"{name}_{end}" for name in ends for end in ("low", "high")]
        + ["mig", "error_code", "error"]
    )
    for trial in exploration.trials:
        outcome = trial.outcome
        bounds = [
            [round_metric(name, end) for end in outcome.intervals[name]] if name in outcome.intervals else ("", "")
            for name in ends
        ]
        writer.writerow(
            [trial.number, _status(trial), on_front.get(trial.number, "")]
            + [trial.choices.get(name, "") for name in names]
            + [round_metric(name, outcome.values[name]) if name in outcome.values else "" for name in metrics]
            + [end for pair in bounds for end in pair]
            + [outcome.mig, outcome.error_code, outcome.error]
        )
    return target.getvalue()


def _status(trial: Trial) -> str:
    if trial.has_failed:
        return "failed"
    return "ok" if trial.is_feasible else "infeasible"


def _describe(exploration: Exploration) -> list[Section]:
    plan, front = exploration.plan, exploration.front
    conditions = ", ".join(plan["conditions"].values())
    limits = f" Limits, kept to at the bad end of the interval: {', '.join(plan['limits'])}." if plan["limits"] else ""
    where = "a space made in Python" if exploration.space.path is None else exploration.space.path.name
    found = [
        f"{len(exploration.trials)} models of {where}, predicted on {plan['device']} at batch {plan['batch']}, "
        f"{conditions}; objectives: {', '.join(plan['objectives'])}. Sampler {plan['sampler']}, seed {plan['seed']}, "
        f"dippm {plan['versions']['dippm']}.{limits}",
        f"{len(front)} of them are on the front: no other model tried is better in one objective and at least as good "
        "in all others.",
        *exploration.warnings,
    ]
    sections = [Section(title="What was found", text=found, plot=_PLOT)]
    if front:
        sections.append(
            Section(
                title="The front",
                text=[
                    "In brackets the interval that holds the measured value in 90 % of cases. Rivals are points that "
                    "may in truth be at least as good in every objective without any value leaving its interval: "
                    "between them the order is not certain. Errors of models that are alike mostly point the same "
                    "way, so that it is more certain than the intervals alone say.",
                    f'The model of a point: dippm.rebuild("{_FRONT}.json", NUMBER).',
                ],
                tables=[_front_table(exploration)],
            )
        )
    return sections


def _front_table(exploration: Exploration) -> Table:
    metrics, names = exploration.metrics, [choice.name for choice in exploration.space.choices]
    rows = []
    for at, trial in enumerate(exploration.front):
        figures = [_figure(trial, metric) for metric in metrics]
        rivals = " ".join(str(other + 1) for other in exploration.rivals[at])
        choices = [str(trial.choices.get(name, "-")) for name in names]
        rows.append([str(at + 1), *figures, trial.outcome.mig_name, rivals or "-", *choices])
    return Table(header=["", *(TITLES[metric] for metric in metrics), "MIG", "rivals", *names], rows=rows)


def _figure(trial: Trial, metric: str) -> str:
    value = trial.outcome.values.get(metric)
    if value is None:
        return "-"
    if metric not in trial.outcome.intervals:
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    low, high = trial.outcome.intervals[metric]
    return f"{format_figure(value)} [{format_figure(low)} – {format_figure(high)}]"


def _draw(exploration: Exploration) -> bytes:
    """Every pair of objectives: all trials, those on the front with their intervals."""
    from dippm.datasets.statistics_plots import open_figure

    objectives = exploration.objectives
    pairs: list[tuple[Objective | None, Objective]] = list(combinations(objectives, 2)) or [(None, objectives[0])]
    columns = min(len(pairs), _MOST_COLUMNS)
    rows = -(-len(pairs) // columns)
    target = io.BytesIO()
    with open_figure(3.6 * columns + 0.4, 3.2 * rows + 0.2, target) as figure:
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel, pair in zip(panels, pairs, strict=False):
            _draw_pair(panel, exploration, *pair)
        for panel in panels[len(pairs) :]:
            panel.set_visible(False)
    return target.getvalue()


def _draw_pair(panel: Axes, exploration: Exploration, across: Objective | None, up: Objective) -> None:
    from dippm.datasets.statistics_plots import BLUE, GREY, INK
    from dippm.evaluation.plot_parts import MOST_MARKS, tidy, write_plainly

    for objective, axis, scale in ((across, panel.xaxis, panel.set_xscale), (up, panel.yaxis, panel.set_yscale)):
        if objective is not None and objective.metric != "score":
            scale("log")
            write_plainly(axis)
    others = [trial for trial in exploration.trials if not trial.has_failed]
    for trials, color, size, label in (
        ([trial for trial in others if not trial.is_feasible], GREY, 5, "breaks a limit"),
        ([trial for trial in others if trial.is_feasible], BLUE, 7, "tried"),
    ):
        if trials:
            panel.scatter(
                _values(trials, across), _values(trials, up), s=size, color=color, linewidths=0, label=label,
                rasterized=len(trials) > MOST_MARKS,
            )  # fmt: skip
    front = exploration.front
    spans = {
        axis: _spans(front, objective)
        for axis, objective in (("xerr", across), ("yerr", up))
        if objective is not None and objective.metric in UNCERTAIN
    }
    # The picture shows the values; an interval that is much wider than they differ runs out of it.
    limits = panel.get_xlim(), panel.get_ylim()
    panel.errorbar(
        _values(front, across), _values(front, up), xerr=spans.get("xerr"), yerr=spans.get("yerr"),
        fmt="o", markersize=3, color=INK, ecolor=GREY, elinewidth=0.3, linewidth=0, label="front",
    )  # fmt: skip
    panel.set(xlim=limits[0], ylim=limits[1])
    panel.set_xlabel("trial" if across is None else TITLES[across.metric])
    panel.set_ylabel(TITLES[up.metric])
    panel.legend(frameon=False, fontsize=7)
    tidy(panel, "both")


def _values(trials: Sequence[Trial], objective: Objective | None) -> list[float]:
    if objective is None:
        return [float(trial.number) for trial in trials]
    return [float(trial.outcome.values[objective.metric]) for trial in trials]


def _spans(trials: Sequence[Trial], objective: Objective) -> list[list[float]]:
    """How far the intervals reach below the values, and how far above them."""
    ends = [(trial.outcome.values[objective.metric], *trial.outcome.ends(objective.metric)) for trial in trials]
    return [[value - low for value, low, _ in ends], [high - value for value, _, high in ends]]
