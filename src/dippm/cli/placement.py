"""``dippm fits`` and ``dippm max-batch``: what a device holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dippm.api.question import Options
from dippm.cli import options
from dippm.cli.folded_name import FoldedName
from dippm.cli.output import (
    SCHEMA,
    is_terminal,
    make_console,
    make_printable,
    print_columns,
    print_json,
    print_note,
)
from dippm.cli.predict import (
    find_devices,
    is_of_energy,
    make_title,
    memory_lines,
    notes_of,
    print_heading,
    refused_entry,
)
from dippm.cli.shared_options import with_shared_options

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from dippm.api import DeviceFit, MaxBatch, Price

__all__ = ["FITS_HELP", "MAX_BATCH_HELP", "fits", "max_batch"]

FITS_HELP = "Say whether a model fits: yes, no, or unsure where the capacity lies inside the interval."
MAX_BATCH_HELP = "Find the largest batch that fits."

_FIT_COLUMNS = ("device", "batch", "fits", "needed_low", "needed_high", "capacity_mb", "margin_mb", "largest_part")
_MAX_BATCH_COLUMNS = ("device", "batch", "batch_at_most", "bound_by", "largest_part", "latency_ms", "memory_mb")
_PRICE_COLUMNS = ("price_per_hour", "price_per_call", "price_per_sample")
_DEVICE_WIDTH = 21
_NARROW_WIDTH = 9
_STYLES = {"yes": "bold green", "no": "bold red", "unsure": "bold yellow"}
_MILLION = 1e6
_OF_VERDICTS = re.compile(r"(^|: )It (does|may) not fit: ")
_MAX_BATCH_NOTE = "batch: all that it may need fits, and time and memory are those at it; at most: not ruled out."


@with_shared_options
def fits(
    model: options.ModelArgument,
    *,
    batch: options.BatchOption = None,
    device: options.DeviceOption = None,
    device_file: options.DeviceFileOption = None,
    price: options.PriceOption = None,
    asked: Options,
    predictor: options.PredictorOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Run ``dippm fits``."""
    from dippm import api

    devices = find_devices(device, device_file, predictor)
    answers = api.fits(
        model,
        device=devices,
        batch=options.parse_batches(batch),
        prices=options.parse_prices(price),
        predictor=predictor,
        **asked,
    )
    if as_json:
        _print_json("fits", answers, refused_entry(devices, predictor, asked))
    elif is_terminal():
        _print_table(_fit_table(answers), answers, _held_note(answers, predictor))
    else:
        _print_rows(_FIT_COLUMNS, answers, [_fit_row(answer) for answer in answers])


@with_shared_options
def max_batch(
    model: options.ModelArgument,
    *,
    device: options.DeviceOption = None,
    device_file: options.DeviceFileOption = None,
    latency_ms: Annotated[
        float | None, typer.Option("--latency-ms", help="Take no longer than this for a call.", show_default=False)
    ] = None,
    step_time_ms: Annotated[
        float | None,
        typer.Option("--step-time-ms", help="Take no longer than this for a training step.", show_default=False),
    ] = None,
    price: options.PriceOption = None,
    asked: Options,
    predictor: options.AdaptedPredictorOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Run ``dippm max-batch``."""
    from dippm import api

    devices = find_devices(device, device_file, predictor)
    found = api.max_batch(
        model,
        device=devices,
        latency_ms=latency_ms,
        step_time_ms=step_time_ms,
        prices=options.parse_prices(price),
        predictor=predictor,
        **asked,
    )
    answers = found if isinstance(found, list) else [found]
    if as_json:
        _print_json("max_batches", answers, refused_entry(devices, predictor, asked))
    elif is_terminal():
        notes = (_MAX_BATCH_NOTE, _held_note(answers, predictor))
        _print_table(_max_batch_table(answers), answers, *notes, warnings=_none_notes(answers))
    else:
        rows = [_max_batch_row(answer) for answer in answers]
        _print_rows(_MAX_BATCH_COLUMNS, answers, rows, warnings=_none_notes(answers))


def _print_json(name: str, answers: Sequence[DeviceFit | MaxBatch], refused: dict[str, object]) -> None:
    """Answers under their name, beside the model that all of them are about and the devices that are left out."""
    model = answers[0].prediction.model.to_dict()
    print_json({"schema": SCHEMA, "model": model, name: [answer.to_dict() for answer in answers], **refused})


def _max_batch_row(answer: MaxBatch) -> list[object]:
    """Time, memory and its largest part are those at the batch; of none there are none."""
    figures = answer.prediction.to_dict() | {"largest_part": answer.largest_part} if answer.batch else {}
    found = {name: getattr(answer, name) for name in ("device", "batch", "batch_at_most", "bound_by")}
    return [found.get(name, figures.get(name)) for name in _MAX_BATCH_COLUMNS]


def _none_notes(answers: Sequence[MaxBatch]) -> list[str]:
    """Why not even a batch of one is possible, where that is so."""
    return [answer.none_note for answer in answers if answer.none_note]


def _fit_row(answer: DeviceFit) -> list[object]:
    figures = (*answer.needed_mb, answer.capacity_mb, answer.margin_mb)
    return [
        answer.device,
        answer.batch,
        answer.verdict.value,
        *(round(figure, 1) for figure in figures),
        answer.largest_part,
    ]


def _print_rows(
    columns: tuple[str, ...],
    answers: Sequence[DeviceFit | MaxBatch],
    rows: Sequence[list[object]],
    *,
    warnings: Sequence[str] = (),
) -> None:
    """Rows for a pipe; what they cost in columns of their own where prices were given."""
    if any(answer.price is not None for answer in answers):
        columns += _PRICE_COLUMNS
        for row, answer in zip(rows, answers, strict=True):
            entries = {} if answer.price is None else answer.price.to_dict()
            row += [entries.get(name.removeprefix("price_")) for name in _PRICE_COLUMNS]
    print_heading([answer.prediction for answer in answers], with_memory=not warnings)
    print_columns(columns, rows)
    for note in (*warnings, *_file_notes(answers)):
        print_note(f"! {note}")


def _held_note(answers: Sequence[DeviceFit | MaxBatch], predictor: str | None) -> str:
    """What a predictor that was named rests on."""
    if predictor is None:
        return ""
    info = answers[0].prediction.predictor
    return make_printable(f"{info.name} {info.version}, fitted on: {info.labels}")


def _print_table(
    table: Table, answers: Sequence[DeviceFit | MaxBatch], *notes: str, warnings: Sequence[str] = ()
) -> None:
    """The table, with the model and the conditions above it and the notes below."""
    from rich.text import Text

    predictions = [answer.prediction for answer in answers]
    console = make_console()
    console.print(make_title(predictions[0]))
    console.print(table)
    for line in () if warnings else memory_lines(predictions):
        console.print(Text(line))
    priced = (
        "price: of a million samples, on a device that never waits for data, and of an hour as given; the cheapest "
        "comes first."
    )
    for text in (*notes, priced if any(answer.price is not None for answer in answers) else ""):
        if text:
            console.print(Text(text, style="dim"))
    for warning in (*warnings, *_file_notes(answers)):
        console.print(Text(f"! {make_printable(warning)}", style="yellow"))


def _file_notes(answers: Sequence[DeviceFit | MaxBatch]) -> list[str]:
    """What a verdict rests on; no table has the energy, and whether a model fits one of several rows says."""
    notes = [note for note in notes_of([answer.prediction for answer in answers]) if not is_of_energy(note)]
    return notes if len(answers) == 1 else [note for note in notes if not _OF_VERDICTS.search(note)]


def _fit_table(answers: Sequence[DeviceFit]) -> Table:
    from rich.text import Text

    table = _make_table(answers, ("batch", "fits", "needs, MiB", "has, MiB", "margin, MiB"))
    for answer in answers:
        table.add_row(
            FoldedName(answer.device),
            f"{answer.batch:,}",
            Text(answer.verdict.value, style=_STYLES[answer.verdict.value]),
            _memory(answer.needed_mb, answer),
            f"{answer.capacity_mb:,.0f}",
            f"{answer.margin_mb:+,.0f}",
            *_price_cells(answers, answer.price),
        )
    return table


def _max_batch_table(answers: Sequence[MaxBatch]) -> Table:
    from rich.text import Text

    from dippm.cli.figures import format_figure

    none = Text("-", style="dim")
    table = _make_table(answers, ("batch", "at most", "bound by", "time, ms", "memory, MiB"))
    for answer in answers:
        prediction = answer.prediction
        table.add_row(
            FoldedName(answer.device),
            Text(f"{answer.batch:,}", style="bold green" if answer.batch else "bold red"),
            f"{answer.batch_at_most:,}",
            answer.bound_by.replace("_", " "),
            format_figure(prediction.latency_ms) if answer.batch else none,
            _memory(answer.needed_mb, answer) if answer.batch else none,
            *_price_cells(answers, answer.price),
        )
    return table


def _make_table(answers: Sequence[DeviceFit | MaxBatch], columns: tuple[str, ...]) -> Table:
    from dippm.cli.fitting_table import FittingTable

    has_prices = any(answer.price is not None for answer in answers)
    table = FittingTable()
    table.add_column("device", min_width=_NARROW_WIDTH if has_prices else _DEVICE_WIDTH)
    for title in columns:
        table.add_column(title, justify="left" if title in ("fits", "bound by") else "right", no_wrap=True)
    if has_prices:
        table.add_column("price", justify="right", no_wrap=True)
    return table


def _memory(interval_mb: tuple[float, float], answer: DeviceFit | MaxBatch) -> Text:
    """The memory that is needed; below it the part that decides, with its share."""
    from rich.text import Text

    from dippm.cli.figures import format_interval

    parts, name = answer.prediction.memory_parts_mb, answer.largest_part
    total = sum(parts.values())
    share = f"{name} {100 * parts[name] / total:.0f} %" if total else "parts unknown"
    return Text.assemble(format_interval(interval_mb), "\n", (share, "dim"))


def _price_cells(answers: Sequence[DeviceFit | MaxBatch], price: Price | None) -> list[Text]:
    from rich.text import Text

    from dippm.cli.figures import format_figure

    if all(answer.price is None for answer in answers):
        return []
    if price is None:
        return [Text("-", style="dim")]
    per_million = f"{format_figure(price.per_sample * _MILLION)}/M"
    return [Text.assemble(per_million, "\n", (f"{format_figure(price.per_hour)}/h", "dim"))]
