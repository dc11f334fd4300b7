"""``dippm sweep``: many models at many batches on many devices, into one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dippm.api.question import Options
from dippm.cli import options
from dippm.cli.output import (
    SCHEMA,
    is_terminal,
    kept_stdout,
    make_console,
    make_printable,
    print_columns,
    print_json,
    print_note,
)
from dippm.cli.predict import find_devices
from dippm.cli.progress import CountBar
from dippm.cli.shared_options import with_shared_options

if TYPE_CHECKING:
    from dippm.api import SweepProgress, SweepReport
    from dippm.api.sweeping import OpenRunner

__all__ = ["HELP", "sweep"]

HELP = "Predict many models at many batches on many devices, into one table."

_LONGEST_EXAMPLE = 160


@with_shared_options
def sweep(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODELS...",
            help="Model files, folders of them, timm:NAME and the like, or @FILE with one of these a line.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="The table, .parquet or .csv.", show_default=False)
    ],
    *,
    batch: options.BatchOption = None,
    device: options.DeviceOption = None,
    device_file: options.DeviceFileOption = None,
    asked: Options,
    predictor: options.PredictorOption = None,
    mig_policy: options.MigPolicyOption = "safe",
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            metavar="N",
            help="Processes that predict; one for each core when left out. 1 works in this process, without its "
            "protection.",
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="auto|HOST:PORT|ray://HOST:PORT",
            help="Spread the work over a Ray cluster, whose machines see the same files.",
            show_default=False,
        ),
    ] = None,
    model_limit: Annotated[
        str, typer.Option("--model-limit", metavar="TIME", help="Time after which a model is given up.")
    ] = "10m",
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with what an earlier run of the same sweep left; if it is done, say so."),
    ] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Run ``dippm sweep``."""
    from dippm import api

    devices = find_devices(device, device_file, predictor)
    bar = _Progress()
    try:
        with kept_stdout(cluster):
            report = api.sweep(
                models,
                out=out,
                batch=options.parse_batches(batch),
                device=devices,
                mig_policy=mig_policy,
                predictor=predictor,
                jobs=jobs,
                open_runner=_on_cluster(cluster),
                model_limit_s=api.parse_duration(model_limit),
                resume=resume,
                on_progress=bar.show,
                **asked,
            )
    except KeyboardInterrupt:
        bar.close()
        if out.with_name(f"{out.name}.parts").exists():
            print_note(f"Interrupted. The same command with --resume goes on with what lies in '{out}.parts'.")
        else:
            print_note("Interrupted before any part was kept.")
        raise
    finally:
        bar.close()
    if as_json:
        print_json({"schema": SCHEMA, "sweep": report.to_dict()})
    elif is_terminal():
        _print_report(report)
    else:
        print_columns(
            ("out", "models", "rows", "errors", "seconds"),
            [(report.out, report.models, report.rows, report.errors, f"{report.seconds:.1f}")],
        )
        for failure in report.failures:
            print_note(f"! {failure.rows} x {failure.code}: {failure.model}: {failure.error}")
    if report.resumed_models == report.models and not as_json:
        print_note("An earlier run had done all models: nothing was left to predict.")
    if report.rows and report.errors == report.rows:
        print_note("No model could be predicted: every row is an error.")
        raise typer.Exit(1)


def _on_cluster(address: str | None) -> OpenRunner | None:
    """Nothing of Ray is imported where no cluster is named."""
    if address is None:
        return None
    from dippm.cluster.sweep import RaySweep

    return RaySweep(address)


class _Progress:
    """How far a sweep is, and how fast."""

    def __init__(self) -> None:
        self._bar = CountBar("models")

    def show(self, progress: SweepProgress) -> None:
        """Show the state after one more model."""
        errors = f", {progress.errors:,} errors" if progress.errors else ""
        self._bar.show(progress.models, progress.total, f"{progress.rows_per_s:,.0f} rows a second{errors}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._bar.close()


def _print_report(report: SweepReport) -> None:
    from rich.text import Text

    from dippm.cli.fitting_table import FittingTable

    console = make_console()
    again = f" ({report.resumed_models:,} by an earlier run)" if report.resumed_models else ""
    console.print(
        Text.assemble(
            (make_printable(report.out), "bold"),
            f"\n{report.rows:,} rows of {report.models:,} models{again}, {report.errors:,} errors, "
            f"{report.seconds:.1f} s",
        )
    )
    if not report.failures:
        return
    table = FittingTable()
    table.add_column("error", no_wrap=True)
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("for example", overflow="fold")
    for failure in report.failures:
        example = make_printable(f"{failure.model}: {failure.error}".replace("\n", " "))
        shown = example if len(example) <= _LONGEST_EXAMPLE else f"{example[:_LONGEST_EXAMPLE]}..."
        table.add_row(Text(failure.code), f"{failure.rows:,}", Text(shown))
    console.print(table)
