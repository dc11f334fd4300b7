"""``dippm evaluate``: how far predictions are from measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from dippm.cli import options
from dippm.cli.evaluate_dippm import run_dippm_protocol
from dippm.cli.evaluate_dnnperf import run_dnnperf_protocol
from dippm.cli.output import SCHEMA, is_terminal, make_console, print_columns, print_json, print_note
from dippm.errors import UsageError

if TYPE_CHECKING:
    from dippm.api import KernelReport, KernelScore, WholeModelReport

__all__ = ["HELP", "evaluate"]

HELP = "Compare predictions with measurements that no training has seen."

_PANEL = "Protocols dippm and dnnperf"
_TRAINED = ("dippm", "dnnperf")
_COLUMNS = ("protocol", "table", "device", "method", "mape", "median_ape", "rows")


def evaluate(
    protocol: Annotated[
        str,
        typer.Option(
            "--protocol",
            help="kernels: single operators on shapes, and on devices, that were left out. "
            "whole-models: published latencies on which nothing was fitted. "
            "dippm, dnnperf: networks trained and compared on --data as in the paper of that name; "
            "the report goes to --out.",
        ),
    ] = "kernels",
    seed: Annotated[int, typer.Option("--seed", help="Seed of splits and training; the shipped artefact's is 0.")] = 0,
    retrain: Annotated[
        bool,
        typer.Option(
            "--retrain",
            help="Leave out every device in turn and train again; else the errors stored with the artefact are shown.",
        ),
    ] = False,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="STORE|PARQUET", help="Labels.", show_default=False, rich_help_panel=_PANEL),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Where report and trainings go; run again to go on.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            "--cache",
            metavar="FOLDER",
            help="Folder of graphs; dippm-trained/graphs when left out.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", "-d", metavar="NAME", help="Of the labels.", show_default=False, rich_help_panel=_PANEL
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="NAME", help="Who measured.", show_default=False, rich_help_panel=_PANEL),
    ] = None,
    mode: Annotated[
        str, typer.Option("--mode", "-m", help="Of the labels; dnnperf is of training.", rich_help_panel=_PANEL)
    ] = "inference",
    precision: Annotated[
        str, typer.Option("--precision", "-p", help="Of the labels.", rich_help_panel=_PANEL)
    ] = "fp32",
    layout: Annotated[str, typer.Option("--layout", help="Of the labels.", rich_help_panel=_PANEL)] = "nchw",
    runtime: Annotated[
        str, typer.Option("--runtime", help="Of the labels; dnnperf is of eager.", rich_help_panel=_PANEL)
    ] = "eager",
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", help="Of the labels.", show_default=False, rich_help_panel=_PANEL)
    ] = None,
    pretrain: options.PretrainOption = None,
    pretrain_epochs: options.PretrainEpochsOption = 20,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", help="Of the comparison: 10, dnnperf 30.", show_default=False, rich_help_panel=_PANEL),
    ] = None,
    long_epochs: Annotated[
        int, typer.Option("--long-epochs", help="Of the long runs of dippm, at most.", rich_help_panel=_PANEL)
    ] = 200,
    seeds: Annotated[int, typer.Option("--seeds", help="Seeds of the comparison.", rich_help_panel=_PANEL)] = 1,
    leave_families_out: Annotated[
        int,
        typer.Option(
            "--leave-families-out",
            metavar="N",
            help="Leave all families out in turn, in N groups; each is a long run.",
            rich_help_panel=_PANEL,
        ),
    ] = 0,
    hidden: Annotated[
        int | None,
        typer.Option(
            "--hidden", help="Width of the networks: 512, dnnperf 64.", show_default=False, rich_help_panel=_PANEL
        ),
    ] = None,
    learning_rate: Annotated[
        str, typer.Option("--lr", metavar="RATE|auto", help="Learning rate.", rich_help_panel=_PANEL)
    ] = "0.003",
    mixed_precision: Annotated[
        bool,
        typer.Option(
            "--mixed-precision", help="Train networks in fp16 on a GPU, in bf16 on a CPU.", rich_help_panel=_PANEL
        ),
    ] = False,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", metavar="N", help="Processes that read models.", rich_help_panel=_PANEL)
    ] = 1,
    as_json: options.JsonOption = False,
) -> None:
    """Run ``dippm evaluate``."""
    from dippm import api

    if pretrain is not None and protocol != "dippm":
        raise UsageError(
            f"The protocol '{protocol}' takes no --pretrain.",
            code="usage.invalid",
            cure="Leave it out, or add --protocol dippm.",
        )
    if protocol in _TRAINED:
        if data is None or out is None:
            raise UsageError(
                f"The protocol {protocol} needs labels and a folder: --data and --out.", code="usage.invalid"
            )
        if protocol == "dnnperf":
            run_dnnperf_protocol(
                data,
                out,
                cache=cache,
                device=device,
                source=source,
                precision=precision,
                layout=layout,
                optimizer=optimizer,
                epochs=30 if epochs is None else epochs,
                seeds=seeds,
                seed=seed,
                leave_families_out=leave_families_out,
                hidden=64 if hidden is None else hidden,
                learning_rate=learning_rate,
                mixed_precision=mixed_precision,
                jobs=jobs,
                as_json=as_json,
            )
            return
        run_dippm_protocol(
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
            epochs=10 if epochs is None else epochs,
            long_epochs=long_epochs,
            seeds=seeds,
            seed=seed,
            leave_families_out=leave_families_out,
            hidden=512 if hidden is None else hidden,
            learning_rate=learning_rate,
            mixed_precision=mixed_precision,
            jobs=jobs,
            as_json=as_json,
        )
        return
    from dippm.api.evaluation import PROTOCOLS

    if protocol not in PROTOCOLS:
        raise UsageError(
            f"The protocol must be one of {', '.join((*PROTOCOLS, *_TRAINED))}. Got '{protocol}' instead.",
            code="protocol.unknown",
        )
    if data is not None or out is not None:
        raise UsageError(
            f"The protocol '{protocol}' takes no --data and no --out.",
            code="usage.invalid",
            cure="Add --protocol dippm or dnnperf to train and compare networks on labels.",
        )
    if not as_json:
        print_note("Comparing with the measured tables" + ("; training takes minutes ..." if retrain else " ..."))
    report = api.evaluate(protocol, seed=seed, retrain=retrain)
    if as_json:
        print_json({"schema": SCHEMA, "protocol": protocol, **report.to_dict()})
    elif protocol == "whole-models":
        _show_whole_models(cast("WholeModelReport", report))
    else:
        _show_kernels(cast("KernelReport", report))


def _show_whole_models(report: WholeModelReport) -> None:
    columns = (
        "source", "model", "device", "how", "batch", "measured_ms", "predicted_ms", "error_percent", "is_covered",
    )  # fmt: skip
    if not is_terminal():
        print_columns(columns, ([getattr(score, name) for name in columns] for score in report.scores))
        return
    from rich.text import Text

    from dippm.cli.fitting_table import FittingTable

    table = FittingTable(gap=3)
    for name in ("source", "model", "device", "how"):
        table.add_column(name, overflow="fold")
    for name in ("batch", "measured, ms", "predicted, ms", "error, %", "in interval"):
        table.add_column(name, justify="right")
    for score in report.scores:
        table.add_row(
            score.source,
            score.model,
            score.device,
            score.how,
            f"{score.batch:,}",
            f"{score.measured_ms:.4g}",
            f"{score.predicted_ms:.4g}",
            f"{score.error_percent:+.1f}",
            "yes" if score.is_covered else "no",
        )
    console = make_console()
    console.print(table)
    summary = f"mean absolute error {report.mape_percent():.1f} %, {report.coverage_percent():.0f} % in their interval"
    console.print(Text(summary, style="bold"))


def _show_kernels(report: KernelReport) -> None:
    if is_terminal():
        _print_tables(report)
    else:
        print_columns(_COLUMNS, ([getattr(score, name) for name in _COLUMNS] for score in report.scores))


def _print_tables(report: KernelReport) -> None:
    from rich.text import Text

    from dippm.cli.fitting_table import FittingTable

    console = make_console()
    for protocol, title, value in (
        ("split", "New shapes on measured devices: mean absolute error, %", "mape"),
        ("left out", "Device left out of the training entirely, new shapes: median absolute error, %", "median_ape"),
    ):
        scores = [score for score in report.scores if score.protocol == protocol]
        if not scores:
            continue
        methods = list(dict.fromkeys(score.method for score in scores))
        table = FittingTable(title, gap=3)
        table.add_column("operator")
        table.add_column("device", overflow="fold")
        for name in ("rows", *methods):
            table.add_column(name, justify="right")
        groups: dict[tuple[str, str], dict[str, KernelScore]] = {}
        for score in scores:
            groups.setdefault((score.table, score.device), {})[score.method] = score
        for (operator, device), found in groups.items():
            figures = (f"{getattr(found[name], value):.1f}" if name in found else "" for name in methods)
            table.add_row(operator, Text(device), f"{next(iter(found.values())).rows:,}", *figures)
        console.print(table)
    console.print(Text(f"Untouched 15 % of the shapes, seed {report.seed}.", style="dim"))
