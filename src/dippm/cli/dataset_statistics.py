"""What ``dippm dataset stats`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from dippm.cli.output import SCHEMA, is_terminal, make_console, make_printable, print_columns, print_json, print_note

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from dippm.api import LabelStatistics
    from dippm.datasets.statistics import Distribution, LabelGroup

__all__ = ["show_statistics"]

_METRICS = ("latency_ms", "energy_j", "memory_mb")
_QUANTILES = ("q05", "median", "q95")
_COLUMNS = (
    "device", "mode", "precision", "family", "rows", "models", "ok",
    *(f"{metric}_{quantile}" for metric in _METRICS for quantile in _QUANTILES),
)  # fmt: skip


def show_statistics(statistics: LabelStatistics, *, plots: Sequence[Path], as_json: bool) -> None:
    """Print a summary of labels as JSON, as a table, or as columns.

    Args:
        statistics: The summary.
        plots: Files that were drawn.
        as_json: Whether the caller asked for JSON.
    """
    if as_json:
        print_json({"schema": SCHEMA, **statistics.to_dict(), "plots": [str(path) for path in plots]})
        return
    if is_terminal():
        console = make_console()
        for table in _make_tables(statistics):
            console.print(table)
        for line in _remarks(statistics):
            console.print(line, style="dim", soft_wrap=True)
    else:
        print_columns(_COLUMNS, (_row(group) for group in statistics.groups))
        for line in _remarks(statistics):
            print_note(line)
    for path in plots:
        print_note(f"drawn: {path}")


def _row(group: LabelGroup) -> list[object]:
    from dippm.predictors.prediction import round_figures

    cells: list[object] = [group.device, group.mode, group.precision, group.family, group.rows, group.models]
    cells.append(group.outcomes.get("ok", 0))
    for metric in _METRICS:
        found: Distribution | None = getattr(group, metric)
        cells += [None if found is None else round_figures(getattr(found, quantile)) for quantile in _QUANTILES]
    return cells


def _make_tables(statistics: LabelStatistics) -> Iterator[Table]:
    """A table for each device and conditions, a row for each family."""
    from rich.text import Text

    from dippm.cli.fitting_table import FittingTable

    for where, groups in groupby(statistics.groups, key=lambda group: (group.device, group.mode, group.precision)):
        title = Text(make_printable(", ".join(where)), style="bold")
        table = FittingTable(title)
        table.add_column("family", overflow="fold")
        for name in ("rows", "models", "ok", "latency, ms", "energy, J", "memory, MiB"):
            table.add_column(name, justify="right", no_wrap=True)
        for group in groups:
            table.add_row(
                Text(make_printable(group.family)),
                f"{group.rows:,}",
                f"{group.models:,}",
                f"{group.outcomes.get('ok', 0):,}",
                *(_figure(getattr(group, metric)) for metric in _METRICS),
            )
        yield table


def _figure(found: Distribution | None) -> Text:
    from rich.text import Text

    from dippm.cli.figures import format_figure, format_interval

    if found is None:
        return Text("unknown", style="dim")
    return Text.assemble(format_figure(found.median), (f"\n{format_interval((found.q05, found.q95))}", "dim"))


def _remarks(statistics: LabelStatistics) -> Iterator[str]:
    outcomes = ", ".join(f"{name} {rows:,}" for name, rows in statistics.outcomes.items()) or "none"
    yield f"{statistics.rows:,} labels of {statistics.models:,} models and {statistics.graphs:,} graphs: {outcomes}"
    yield "figures: median, and from 5 % to 95 %, of the rows that ended well"
    for floor in statistics.noise:
        yield (
            f"noise of {floor.device}: {floor.metric} differs by {floor.mean_difference_percent:.1f} % between "
            f"{floor.pairs} pairs, at most {floor.largest_difference_percent:.1f} %"
        )
    for failure in statistics.failures:
        yield make_printable(f"{failure.rows} x {failure.outcome}: {failure.message} ({failure.example})")
