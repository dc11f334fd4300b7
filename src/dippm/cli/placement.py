"""``dippm fits`` and ``dippm max-batch``: what a device holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dippm.cli import options
from dippm.cli.output import SCHEMA, is_terminal, make_console, print_columns, print_json

if TYPE_CHECKING:
    from dippm.api import DeviceSpec, Fit, MaxBatch

__all__ = ["FITS_HELP", "MAX_BATCH_HELP", "fits", "max_batch"]

FITS_HELP = "Say whether a model fits: yes, no, or unsure where the capacity lies inside the interval."
MAX_BATCH_HELP = "Find the largest batch that fits."

_FIT_COLUMNS = ("device", "batch", "fits", "needed_low", "needed_high", "capacity_mb", "margin_mb")
_MAX_BATCH_COLUMNS = ("device", "batch", "batch_at_most", "bound_by")
_DEVICE_WIDTH = 21
_STYLES = {"yes": "bold green", "no": "bold red", "unsure": "bold yellow"}


def fits(
    model: options.ModelArgument,
    framework: options.FrameworkOption = None,
    batch: options.BatchOption = "1",
    input: options.InputOption = None,  # noqa: A002 - the contract's name
    device: options.DeviceOption = None,
    device_file: options.DeviceFileOption = None,
    precision: options.PrecisionOption = "fp32",
    mode: options.ModeOption = "inference",
    optimizer: options.OptimizerOption = None,
    layout: options.LayoutOption = "nchw",
    runtime: options.RuntimeOption = "eager",
    trust_pickle: options.TrustOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Run ``dippm fits``."""
    from dippm import api

    batches = options.parse_batches(batch)
    specs = options.find_devices(device, device_file)
    graph = api.load(
        model,
        framework=framework,
        input=options.parse_inputs(input),
        trust=trust_pickle,
        batch_hint=batches[0],
    )
    answers = [
        (
            spec,
            size,
            api.fits(
                graph,
                device=spec,
                batch=size,
                precision=precision,
                mode=mode,
                optimizer=optimizer,
                layout=layout,
                runtime=runtime,
            ),
        )
        for spec in specs
        for size in batches
    ]
    if as_json:
        print_json({"schema": SCHEMA, "fits": [_fit_to_dict(*answer) for answer in answers]})
    elif is_terminal():
        _print_fits(answers)
    else:
        print_columns(_FIT_COLUMNS, (_fit_row(*answer) for answer in answers))


def _fit_to_dict(spec: DeviceSpec, batch: int, fit: Fit) -> dict[str, object]:
    return {
        "device": spec.name,
        "batch": batch,
        "fits": fit.verdict.value,
        "needed_mb": [round(end, 1) for end in fit.needed_mb],
        "capacity_mb": round(fit.capacity_mb, 1),
        "margin_mb": round(fit.margin_mb, 1),
    }


def _fit_row(spec: DeviceSpec, batch: int, fit: Fit) -> list[object]:
    low, high = (round(end, 1) for end in fit.needed_mb)
    return [spec.name, batch, fit.verdict.value, low, high, round(fit.capacity_mb, 1), round(fit.margin_mb, 1)]


def _print_fits(answers: list[tuple[DeviceSpec, int, Fit]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from dippm.cli.figures import format_interval
    from dippm.cli.output import make_printable

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("device", overflow="fold", min_width=_DEVICE_WIDTH)
    table.add_column("batch", justify="right")
    table.add_column("fits")
    for title in ("needs, MiB", "has, MiB", "margin, MiB"):
        table.add_column(title, justify="right", no_wrap=True)
    for spec, batch, fit in answers:
        table.add_row(
            Text(make_printable(spec.name)),
            f"{batch:,}",
            Text(fit.verdict.value, style=_STYLES[fit.verdict.value]),
            format_interval(fit.needed_mb),
            f"{fit.capacity_mb:,.0f}",
            f"{fit.margin_mb:+,.0f}",
        )
    make_console().print(table)


def max_batch(
    model: options.ModelArgument,
    framework: options.FrameworkOption = None,
    input: options.InputOption = None,  # noqa: A002 - the contract's name
    device: options.DeviceOption = None,
    device_file: options.DeviceFileOption = None,
    latency_ms: Annotated[
        float | None, typer.Option("--latency-ms", help="Take no longer than this.", show_default=False)
    ] = None,
    precision: options.PrecisionOption = "fp32",
    mode: options.ModeOption = "inference",
    optimizer: options.OptimizerOption = None,
    layout: options.LayoutOption = "nchw",
    runtime: options.RuntimeOption = "eager",
    trust_pickle: options.TrustOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Run ``dippm max-batch``."""
    from dippm import api

    specs = options.find_devices(device, device_file)
    graph = api.load(model, framework=framework, input=options.parse_inputs(input), trust=trust_pickle)
    answers = [
        api.max_batch(
            graph,
            device=spec,
            latency_ms=latency_ms,
            precision=precision,
            mode=mode,
            optimizer=optimizer,
            layout=layout,
            runtime=runtime,
        )
        for spec in specs
    ]
    if as_json:
        print_json({"schema": SCHEMA, "max_batches": [answer.to_dict() for answer in answers]})
    elif is_terminal():
        _print_max_batches(answers)
    else:
        print_columns(
            _MAX_BATCH_COLUMNS, ([getattr(answer, name) for name in _MAX_BATCH_COLUMNS] for answer in answers)
        )


def _print_max_batches(answers: list[MaxBatch]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from dippm.cli.figures import format_figure, format_interval
    from dippm.cli.output import make_printable

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("device", overflow="fold", min_width=_DEVICE_WIDTH)
    for title in ("batch", "at most"):
        table.add_column(title, justify="right")
    table.add_column("bound by")
    for title in ("latency, ms", "memory, MiB"):
        table.add_column(title, justify="right")
    for answer in answers:
        prediction = answer.prediction
        table.add_row(
            Text(make_printable(answer.device)),
            Text(f"{answer.batch:,}", style="bold green" if answer.batch else "bold red"),
            f"{answer.batch_at_most:,}",
            answer.bound_by,
            format_figure(prediction.latency_ms) if answer.batch else "",
            format_interval(prediction.intervals["memory_mb"]) if answer.batch else "",
        )
    console = make_console()
    console.print(table)
    console.print(
        Text(
            "batch: its whole memory interval fits, and latency and memory are those at it; at most: not ruled out.",
            style="dim",
        )
    )
