"""``dippm evaluate --protocol dippm``: networks compared on measured labels, and the report."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dippm.cli.options import parse_rate
from dippm.cli.output import SCHEMA, is_terminal, make_console, print_columns, print_json, print_note
from dippm.cli.progress import show_trainings

if TYPE_CHECKING:
    from dippm.api import DippmReport

__all__ = ["run_dippm_protocol"]

_COLUMNS = ("table", "model", "seed", "test_rows", "metric", "training", "validation", "test")


def run_dippm_protocol(
    data: str,
    out: Path,
    *,
    cache: Path | None,
    device: str | None,
    source: str | None,
    mode: str,
    precision: str,
    layout: str,
    runtime: str,
    optimizer: str | None,
    pretrain: str | None,
    pretrain_epochs: int,
    epochs: int,
    long_epochs: int,
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
        found = api.evaluate_dippm(
            data,
            out,
            cache=cache,
            device=device,
            source=source,
            mode=mode,
            precision=precision,
            layout=layout,
            runtime=runtime,
            optimizer=optimizer,
            pretrain=pretrain,
            pretrain_epochs=pretrain_epochs,
            epochs=epochs,
            long_epochs=long_epochs,
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
        print_json({"schema": SCHEMA, "protocol": "dippm", "files": files, **found.report.to_dict()})
        return
    if is_terminal():
        _print_table(found.report)
    else:
        print_columns(_COLUMNS, _rows(found.report))
    print_note(f"The report is in {files[0]} and {files[1]}.")


def _rows(report: DippmReport) -> list[list[object]]:
    tables = (
        ("networks", report.networks),
        ("long run", (report.long_run, report.baseline)),
        ("novelty", report.by_novelty),
    )
    return [
        [
            name,
            score.model,
            score.seed,
            score.novelty,
            metric,
            *(f"{score.errors[part][metric]:.4g}" if metric in score.errors[part] else None for part in _COLUMNS[-3:]),
        ]
        for name, scores in tables
        for score in scores
        for metric in score.errors["test"]
    ]


def _print_table(report: DippmReport) -> None:
    from rich.text import Text

    from dippm.cli.fitting_table import FittingTable

    title = f"Mean absolute error, %: {report.dataset.device}, {report.dataset.conditions}"
    table = FittingTable(title, gap=3)
    table.add_column("")
    for part in ("training", "validation", "test"):
        table.add_column(part, justify="right")
    scores = [
        (f"{score.model}, {report.settings.epochs} epochs, seed {score.seed}", score) for score in report.networks
    ]
    scores.append((f"{report.long_run.model}, long run", report.long_run))
    scores += [(f"{score.model}, {score.novelty}", score) for score in report.by_novelty]
    for name, score in scores:
        means = (score.errors[part].get("mean") for part in ("training", "validation", "test"))
        table.add_row(Text(name), *("" if mean is None else f"{mean:.2f}" for mean in means))
    console = make_console()
    console.print(table)
    if report.left_out_mean is not None:
        worst = report.left_out[0]
        console.print(
            f"families left out in turn: {report.left_out_mean:.1f} %, "
            f"the worst is {worst.name} with {worst.errors['mean']:.1f} %"
        )
