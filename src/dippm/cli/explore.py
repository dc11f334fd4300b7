"""``dippm explore``: the best trade-offs in a space of models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
from dippm.cli.progress import CountBar

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

    from dippm.api import Exploration

__all__ = ["HELP", "explore"]

HELP = "Search a space of models for the best trade-offs between what they cost and what they are worth."


def explore(
    space: Annotated[
        str,
        typer.Option(
            "--space",
            metavar="FILE",
            help="The space: a .py file, whose code is run, or a .yaml file. See docs/exploration.md.",
            show_default=False,
        ),
    ],
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            "-o",
            metavar="NAME[:max],...",
            help="What to weigh: latency, energy, memory, step_time, params, macs, or the space's own score; the least "
            "is best, or the most with :max.",
            show_default=False,
        ),
    ],
    trials: Annotated[int, typer.Option("--trials", "-n", metavar="N", help="Models to build and predict.")] = 300,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=NUMBER",
            help="The most that is allowed, as memory_mb=4864, or the least, as 'params>=1e6', at the bad end of the "
            "interval. Repeat it for several.",
            show_default=False,
        ),
    ] = None,
    device: options.OneDeviceOption = None,
    device_file: options.DeviceFileOption = None,
    batch: options.OneBatchOption = "1",
    precision: options.PrecisionOption = "fp32",
    mode: options.ModeOption = "inference",
    optimizer: options.OptimizerOption = None,
    layout: options.LayoutOption = "nchw",
    runtime: options.RuntimeOption = "eager",
    sampler: Annotated[
        str,
        typer.Option(
            "--sampler", help="surrogate, which learns as it goes, or by Optuna nsga2, tpe or random.", metavar="NAME"
        ),
    ] = "surrogate",
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="Equal seeds give equal trials.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Write trials, front, plot and page, and what --resume needs, to a folder that is new or empty.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", metavar="N", help="Processes that build and predict.")] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what lies in the folder, unfinished or with more trials.")
    ] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Run ``dippm explore``."""
    from dippm import api

    bar = CountBar("trials")
    try:
        with kept_stdout(space):
            found = api.explore(
                space,
                objectives=objective,
                device=options.find_one_device(device, device_file),
                trials=trials,
                batch=options.parse_one_batch(batch),
                precision=precision,
                mode=mode,
                optimizer=optimizer,
                layout=layout,
                runtime=runtime,
                sampler=sampler,
                seed=seed,
                limits=limit or [],
                out=out,
                jobs=jobs,
                resume=resume,
                on_trial=bar.show,
            )
    except KeyboardInterrupt:
        if out is not None:
            bar.close()
            print_note("Interrupted. What is known is kept; the same command with --resume goes on.")
        raise
    finally:
        bar.close()
    if as_json:
        print_json({"schema": SCHEMA, **found.to_dict(), "files": [str(path) for path in found.files]})
        return
    if is_terminal():
        make_console().print(_make_table(found))
    else:
        print_columns(_columns(found), _rows(found))
        for note in found.warnings:
            print_note(f"! {note}")
    if found.files:
        print_note(f"The front is in {found.files[1]} and {found.files[2]}.")


def _columns(found: Exploration) -> list[str]:
    columns = ["number", "trial"]
    for metric in found.metrics:
        columns += [metric]
        if any(metric in trial.outcome.intervals for trial in found.front):
            columns += [f"{metric}_low", f"{metric}_high"]
    return [*columns, "mig", "rivals", *(choice.name for choice in found.space.choices)]


def _rows(found: Exploration) -> list[list[object]]:
    from dippm.api.exploration.objectives import round_metric

    rows = []
    for at, trial in enumerate(found.front):
        cells: list[object] = [at + 1, trial.number]
        for metric in found.metrics:
            value, ends = trial.outcome.values[metric], trial.outcome.intervals.get(metric)
            cells += [round_metric(metric, each) for each in (value, *(ends or ()))]
        cells += [trial.outcome.mig_name, ",".join(str(other + 1) for other in found.rivals[at])]
        rows.append([*cells, *(trial.choices.get(choice.name) for choice in found.space.choices)])
    return rows


def _make_table(found: Exploration) -> Group:
    from rich.console import Group
    from rich.text import Text

    from dippm.api.exploration.objectives import TITLES
    from dippm.cli.fitting_table import FittingTable

    plan = found.plan
    title = Text.assemble(
        (f"{len(found.front)} of {len(found.trials)} models are on the front", "bold"),
        f"\n{', '.join(plan['objectives'])}"
        + (f"; {', '.join(plan['limits'])}" if plan["limits"] else "")
        + f"\n{make_printable(str(plan['device']))}, batch {plan['batch']}, {', '.join(plan['conditions'].values())}; "
        f"{plan['sampler']}, seed {plan['seed']}",
    )
    table = FittingTable()
    table.add_column("#", justify="right")
    for metric in found.metrics:
        table.add_column(TITLES[metric], justify="right", no_wrap=True)
    table.add_column("choices", overflow="fold")
    for at, trial in enumerate(found.front):
        choices = ", ".join(f"{name} {value}" for name, value in trial.choices.items())
        figures = [
            _figure(trial.outcome.values[metric], trial.outcome.intervals.get(metric)) for metric in found.metrics
        ]
        rivals = len(found.rivals[at])
        number = Text.assemble(str(at + 1), (f"\n~{rivals}" if rivals else "", "dim"))
        table.add_row(number, *figures, Text(make_printable(choices)))
    notes = [Text(f"! {make_printable(note)}", style="yellow") for note in found.warnings]
    legend = "[90 % interval]. ~N: so many others may in truth be as good in everything, within the intervals."
    return Group(title, table, *notes, Text(legend, style="dim"))


def _figure(value: float, ends: tuple[float, float] | None) -> Text:
    from rich.text import Text

    from dippm.cli.figures import format_count, format_figure, format_interval

    if ends is None:
        return Text(format_count(value) if isinstance(value, int) else f"{value:.4g}")
    return Text.assemble(format_figure(value), "\n", (f"[{format_interval(ends)}]", "dim"))
