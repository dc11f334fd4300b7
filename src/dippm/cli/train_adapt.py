"""``dippm train --adapt``: the shipped predictor, adapted to a device of one's own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dippm.cli.output import SCHEMA, is_terminal, make_console, print_columns, print_json, print_note
from dippm.cli.progress import CountBar
from dippm.errors import UsageError

if TYPE_CHECKING:
    from dippm.api import AdaptationReport

__all__ = ["run_adapt"]

_COLUMNS = (
    "regime", "rows", "models", "error_before_percent", "error_after_percent", "median_half_width_percent", "host_rows",
)  # fmt: skip


def run_adapt(
    data: str,
    *,
    out: Path | None,
    cache: Path | None,
    device: str | None,
    device_file: str | None,
    seed: int,
    jobs: int,
    as_json: bool,
) -> None:
    """Adapt, and show the errors before and after.

    Raises:
        UsageError: ``device.invalid`` where a device is given twice, or one of :func:`dippm.adapt`.
    """
    from dippm import api

    if device is not None and device_file is not None:
        raise UsageError("Give --device or --device-file, not both.", code="device.invalid")
    graphs, tunings = CountBar("models"), CountBar("tunings")

    try:
        report = api.adapt(
            data,
            device=device if device_file is None else api.load_device_file(device_file),
            out=out,
            cache=cache,
            jobs=jobs,
            seed=seed,
            on_graph=graphs.show,
            on_fold=tunings.show,
        )
    finally:
        graphs.close()
        tunings.close()
    if as_json:
        print_json({"schema": SCHEMA, **report.to_dict()})
        return
    if is_terminal():
        _print_table(report)
    else:
        print_columns(_COLUMNS, _rows(report))
    for note in _notes(report):
        print_note(note)


def _rows(report: AdaptationReport) -> list[list[object]]:
    return [
        [
            each.regime,
            each.rows,
            each.models,
            each.before["mape_percent"],
            each.after["mape_percent"],
            each.median_half_width_percent,
            each.host_rows,
        ]
        for each in report.regimes
    ]


def _print_table(report: AdaptationReport) -> None:
    from dippm.cli.fitting_table import FittingTable

    table = FittingTable(f"{report.device}: mean absolute error of the time, %", gap=3)
    for column in ("", "rows", "models", "before", "after", "interval ± %", "wait for host"):
        table.add_column(column, justify="right" if column else "left")
    for regime, rows, models, before, after, width, waiting in _rows(report):
        table.add_row(
            str(regime), f"{rows:,}", f"{models:,}", f"{before:.2f}", f"{after:.2f}", f"{width:.1f}", f"{waiting:,}"
        )
    make_console().print(table)


def _notes(report: AdaptationReport) -> Iterable[str]:
    from dippm.cli.figures import format_number_of

    yield "After: each model is predicted by networks that were tuned without it; those of the folder know all of them."
    for each in report.regimes:
        if not each.is_tuned:
            yield f"Tuning does not help in {each.regime}: the networks stay as they were."
    if report.host_ratio != 1.0:
        yield f"The host takes {report.host_ratio:.2f} times as long per operator as the one that was measured."
    for power in report.power:
        yield (
            f"Power in {power.mode}: energies {power.ratio:.2f} times those of the shipped model, from {power.rows} "
            f"rows; 90 % of them within a factor of {math.exp(power.spread):.2f}."
        )
    if report.context is not None:
        yield (
            f"Context and kernels hold {report.context.context_mb:,.0f} MiB ({report.context.estimated_mb:,.0f} by the "
            f"estimate), from {report.context.rows} rows."
        )
    for reason, count in report.left_out.items():
        yield f"{format_number_of('row', count)} left out: {reason}."
    if report.unread:
        model_key, reason = next(iter(report.unread.items()))
        yield f"{len(report.unread)} models cannot be read; {model_key}: {reason}"
    yield f"The predictor is in {report.folder}: dippm predict MODEL --predictor {report.folder}"
