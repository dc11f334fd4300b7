"""``dippm evaluate --protocol dnnperf``: ANEE compared on measured training steps, and the report."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dippm.cli.options import parse_rate
from dippm.cli.output import SCHEMA, is_terminal, make_console, print_columns, print_json, print_note
from dippm.cli.progress import show_trainings

if TYPE_CHECKING:
    from dippm.api import DnnperfReport

__all__ = ["run_dnnperf_protocol"]

_COLUMNS = ("table", "model", "seed", "group", "rows", "metric", "mre_percent", "rmse")


def run_dnnperf_protocol(
    data: str,
    out: Path,
    *,
    cache: Path | None,
    device: str | None,
    source: str | None,
    precision: str,
    layout: str,
    optimizer: str | None,
    epochs: int,
    seeds: int,
    seed: int,
    leave_families_out: int,
    hidden: int,
    learning_rate: str,
    mixed_precision: bool,
    jobs: int,
    as_json: bool,
) -> None:
    """Run the protocol with progress on stderr, print its errors and name its files; arguments as of the API."""
    from dippm import api

    with show_trainings(out) as (show_graphs, show_run):
        found = api.evaluate_dnnperf(
            data,
            out,
            cache=cache,
            device=device,
            source=source,
            precision=precision,
            layout=layout,
            optimizer=optimizer,
            epochs=epochs,
            seeds=seeds,
            seed=seed,
            leave_families_out=leave_families_out,
            hidden=hidden,
            learning_rate=parse_rate(learning_rate),
            mixed_precision=mixed_precision,
            jobs=jobs,
            command=shlex.join(["dippm", *sys.argv[1:]]),
            on_graph=show_graphs,
            on_run=show_run,
        )
    files = [str(path) for path in found.files]
    if as_json:
        print_json({"schema": SCHEMA, "protocol": "dnnperf", "files": files, **found.report.to_dict()})
        return
    if is_terminal():
        _print_table(found.report)
    else:
        print_columns(_COLUMNS, _rows(found.report))
    print_note(f"The report is in {files[0]} and {files[1]}.")


def _rows(report: DnnperfReport) -> list[list[object]]:
    rows: list[list[object]] = [
        [
            table,
            score.model,
            score.seed,
            group,
            score.group_rows[group],
            metric,
            _plain(pair.mre_percent),
            _plain(pair.rmse),
        ]
        for table, scores in (("comparison", report.comparison), ("ablation", report.ablation))
        for score in scores
        for group, errors in score.test.items()
        for metric, pair in errors.items()
    ]
    rows += [
        [
            table,
            model,
            report.settings.seed,
            score.name,
            score.rows,
            metric,
            _plain(pair.mre_percent),
            _plain(pair.rmse),
        ]
        for table, held_out in (("unseen", report.unseen), ("left out", report.left_out))
        for score in held_out
        for model, errors in score.errors.items()
        for metric, pair in errors.items()
    ]
    return rows


def _plain(value: float) -> str:
    return f"{value:.4g}"


def _print_table(report: DnnperfReport) -> None:
    from dippm.cli.fitting_table import FittingTable

    title = f"Mean relative error of the test rows, %: {report.dataset.device}, {report.dataset.conditions}"
    table = FittingTable(title, gap=3)
    table.add_column("")
    for metric in report.dataset.metrics:
        table.add_column({"latency_ms": "step time", "memory_mb": "memory"}.get(metric, metric), justify="right")
    for name in dict.fromkeys(score.model for score in (*report.comparison, *report.ablation)):
        errors = (report.mean_error(name, metric) for metric in report.dataset.metrics)
        table.add_row(name, *("" if error is None else f"{error:.2f}" for error in errors))
    make_console().print(table)
