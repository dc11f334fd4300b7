"""``dippm inspect``: which operators and modules the time and memory go to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dippm.api.question import Options
from dippm.cli import options
from dippm.cli.folded_name import FoldedName
from dippm.cli.output import is_terminal, make_console, make_printable, print_columns, print_json, print_note
from dippm.cli.shared_options import with_shared_options
from dippm.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree

    from dippm.api import Inspection, ModuleCost, OperatorCost

__all__ = ["HELP", "inspect"]

HELP = "Show which operators and modules the time and memory go to."

_TOP = 10
_COLUMNS = (
    "position",
    "kind",
    "source_op",
    "phase",
    "scope",
    "output_shape",
    "macs",
    "traffic_mb",
    "time_ms",
    "live_mb",
    "kernel",
)
_LONGEST_SCOPE = 48


@with_shared_options
def inspect(
    model: options.ModelArgument,
    *,
    batch: options.OneBatchOption = "1",
    device: options.OneDeviceOption = None,
    device_file: options.DeviceFileOption = None,
    asked: Options,
    predictor: options.AdaptedPredictorOption = None,
    mig_policy: options.MigPolicyOption = "safe",
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            min=0,
            show_default=False,
            help="How many operators to list, the longest first; left out, 10 in a terminal and all elsewhere.",
        ),
    ] = None,
    depth: Annotated[int, typer.Option("--depth", min=0, max=64, help="How many levels of modules to show.")] = 2,
    html: Annotated[
        str | None,
        typer.Option("--html", metavar="FILE", help="Write a page with charts to this file.", show_default=False),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Run ``dippm inspect``."""
    from dippm import api
    from dippm.cli.predict import find_device

    if html is not None:
        _check_page_path(html, model)
    inspection = api.inspect(
        model,
        batch=options.parse_one_batch(batch),
        device=find_device(device, device_file, predictor),
        mig_policy=mig_policy,
        predictor=predictor,
        **asked,
    )
    if html is not None:
        _write_page(inspection, html)
    listed = inspection.operators if top is None else inspection.top_by_time(top)
    if as_json:
        print_json(inspection.to_dict() | {"operators": [operator.to_dict() for operator in listed]})
    elif is_terminal():
        _print_tables(inspection, top=_TOP if top is None else top, depth=depth)
    elif html is None:
        _print_totals(inspection)
        print_columns(_COLUMNS, (_row(operator) for operator in listed))
        for warning in inspection.prediction.warnings:
            print_note(f"! {warning}")
    if html is not None:
        print_note(f"Wrote {html}")


def _print_totals(inspection: Inspection) -> None:
    """Say on stderr what the operators add up to: they alone are rows."""
    from dippm.cli.figures import format_figure, format_interval
    from dippm.cli.predict import print_heading

    prediction = inspection.prediction
    totals = (
        f"{name} {format_figure(value)} {unit} [{format_interval(prediction.intervals[key])}]"
        for name, unit, key, value in (
            ("latency" if prediction.step_time_ms is None else "step", "ms", "latency_ms", prediction.latency_ms),
            ("energy", "J", "energy_j", prediction.energy_j),
            ("memory", "MiB", "memory_mb", prediction.memory_mb),
        )
        if value is not None and key in prediction.intervals
    )
    print_heading([prediction])
    where = f"{prediction.device}, batch {prediction.batch:,}"
    print_note(f"{where}: {', '.join(totals)}{f', MIG {prediction.mig}' if prediction.mig else ''}")
    if inspection.phase_line:
        print_note(inspection.phase_line)


def _row(operator: OperatorCost) -> list[object]:
    answer = operator.to_dict() | {"output_shape": "x".join(map(str, operator.output_shape))}
    return [answer[name] for name in _COLUMNS]


def _check_page_path(html: str, model: str) -> None:
    if Path(html).exists() and Path(model).exists() and Path(html).samefile(model):
        raise UsageError(f"--html names the model file itself, '{html}'.", code="output.is_model", cure="Name another.")
    if not Path(html).absolute().parent.is_dir() or Path(html).is_dir():
        raise _unwritable(html, "the folder does not exist" if not Path(html).is_dir() else "it is a folder")


def _write_page(inspection: Inspection, html: str) -> None:
    from dippm.api.inspect_page import render_page

    try:
        Path(html).write_text(render_page(inspection), encoding="utf-8")
    except OSError as exc:
        raise _unwritable(html, str(exc.strerror)) from exc


def _unwritable(html: str, reason: str) -> UsageError:
    return UsageError(f"The page cannot be written to '{html}': {reason}.", code="output.unwritable")


def _print_tables(inspection: Inspection, *, top: int, depth: int) -> None:
    from rich.text import Text

    from dippm.cli.predict import make_table

    console = make_console()
    console.print(make_table([inspection.prediction]))
    if inspection.phase_line:
        console.print(Text(inspection.phase_line))
    if top:
        console.print()
        console.print(_operator_table("Operators by time", inspection.top_by_time(top), inspection))
        console.print(_operator_table("Operators by live memory", inspection.top_by_memory(top), inspection))
    if depth:
        console.print(Text("Modules", style="bold"))
        console.print(_module_tree(inspection, depth=depth))


def _operator_table(title: str, operators: list[OperatorCost], inspection: Inspection) -> Table:
    from dippm.cli.figures import format_count, format_figure, format_shape
    from dippm.cli.fitting_table import FittingTable

    total = inspection.prediction.latency_ms
    table = FittingTable(title)
    table.add_column("#", justify="right", style="dim", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("module")
    table.add_column("output", no_wrap=True)
    for name in ("MACs", "time, ms", "%", "live, MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    for operator in operators:
        table.add_row(
            str(operator.position),
            operator.kind,
            FoldedName(_shorten(operator.scope or operator.source_op)),
            format_shape(operator.output_shape),
            format_count(operator.macs).rstrip() if operator.macs else "",
            format_figure(operator.time_ms),
            f"{100 * operator.time_ms / total:.0f}" if total else "",
            format_figure(operator.live_mb),
        )
    return table


def _module_tree(inspection: Inspection, *, depth: int) -> Tree:
    from rich.tree import Tree

    root = inspection.tree()
    total = root.time_ms or 1.0
    tree = Tree(_module_line(root, total, name=inspection.prediction.model.source), guide_style="dim")
    stack = [(tree, root, 0)]
    while stack:
        branch, module, level = stack.pop()
        if level >= depth:
            continue
        stack.extend(
            (branch.add(_module_line(child, total, name=child.name)), child, level + 1)
            for child in module.children.values()
        )
    return tree


def _module_line(module: ModuleCost, total_ms: float, *, name: str) -> Text:
    from rich.text import Text

    from dippm.cli.figures import format_count, format_figure, format_number_of

    macs = f", {format_count(module.macs)}MACs" if module.macs else ""
    return Text.assemble(
        make_printable(name),
        "  ",
        (f"{format_figure(module.time_ms)} ms", "bold"),
        (
            f"  {100 * module.time_ms / total_ms:.0f} %{macs}, peak {format_figure(module.peak_mb)} MiB, "
            f"{format_number_of('operator', module.operators)}",
            "dim",
        ),
    )


def _shorten(text: str) -> str:
    """The end of a module's path tells more than its beginning."""
    return text if len(text) <= _LONGEST_SCOPE else "…" + text[-_LONGEST_SCOPE + 1 :]
