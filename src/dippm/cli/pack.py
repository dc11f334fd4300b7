"""``dippm pack``: several models on the MIG slices of several GPUs."""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby
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
    print_text,
)
from dippm.cli.predict import is_of_energy
from dippm.cli.shared_options import with_shared_options
from dippm.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from dippm.api import ModelPacking, PackedGpu

__all__ = ["HELP", "pack"]

_COUNT = re.compile(r"\s*[+-]?\d{1,18}\s*")
_ANY_NAME = r"[^=\s,].*?"

HELP = "Place several models on the MIG slices of as few GPUs as possible."

_COLUMNS = (
    "gpu", "device", "profile", "start", "model", "needed_low", "needed_high", "capacity_mb", "latency_ms",
)  # fmt: skip
_WIDEST_PICTURE = 96
_NARROWEST_SLICE = 8
_STYLES = ("cyan", "green", "yellow", "magenta", "blue", "red")


@with_shared_options
def pack(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODELS...", help="Model files or names, as for dippm predict.", show_default=False),
    ] = None,
    *,
    models_file: Annotated[
        str | None,
        typer.Option(
            "--models",
            metavar="FILE",
            help="More models, as TOML: \\[\\[model]] with model, and where they differ name, batch, latency_ms, "
            "replicas, or one of the options below from framework to software.",
            show_default=False,
        ),
    ] = None,
    device: options.DeviceOption = None,
    device_file: options.DeviceFileOption = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            metavar="N[,N...]",
            help="How many GPUs there are of each device; as many as are needed when left out.",
            show_default=False,
        ),
    ] = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas",
            metavar="MODEL=N[,...]",
            help="How many of a model run at once, each on a slice of its own; 1 when left out. N alone for one model.",
            show_default=False,
        ),
    ] = None,
    batch: options.OneBatchOption = "1",
    latency_ms: Annotated[
        float | None,
        typer.Option("--latency-ms", help="Take no longer than this for a call on the slice.", show_default=False),
    ] = None,
    asked: Options,
    output_format: options.FormatOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Run ``dippm pack``."""
    from dippm import api

    as_kubernetes = options.is_kubernetes(output_format, as_json=as_json)
    given: list[object] = [*(models or []), *([] if models_file is None else api.load_models_file(models_file))]
    packing = api.pack(
        given,
        device=options.find_devices(device, device_file),
        gpus=None if gpus is None else _parse_counts(gpus),
        replicas={} if replicas is None else _parse_replicas(replicas, _names(given)),
        batch=options.parse_one_batch(batch),
        latency_ms=latency_ms,
        **asked,
    )
    if as_kubernetes:
        print_text(api.packing_manifest(packing))
    elif as_json:
        print_json({"schema": SCHEMA, "packing": packing.to_dict()})
    elif is_terminal():
        _draw(packing)
    else:
        print_columns(_COLUMNS, _rows(packing))
        print_note(_summary(packing))
        for warning in _warnings(packing):
            print_note(f"! {warning}")


def _parse_counts(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as exc:
        raise UsageError(
            f"The GPUs must be whole numbers joined by commas, such as 2 or 2,1. Got '{text}' instead.",
            code="pack.gpus",
        ) from exc


def _names(asked: list[object]) -> list[str]:
    """What the models are called in the answer."""
    from dippm.api.models_to_pack import ModelToPack, name_models

    models = [each if isinstance(each, ModelToPack) else ModelToPack(model=each) for each in asked]
    return [str(each.name) for each in name_models(models, {})]


def _parse_replicas(text: str, names: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    if len(names) == 1 and _COUNT.fullmatch(text):
        text = f"{names[0]}={text}"
    # A path may hold "=" and commas: a name that is none of the models' ends where a number follows.
    known = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    replicas = re.compile(rf"\s*(?P<name>{known}|{_ANY_NAME})\s*=\s*(?P<count>[+-]?\d{{1,18}})\s*(?:,|$)")
    place = 0
    while place < len(text):
        part = replicas.match(text, place)
        if part is None:
            raise _misread(text, names)
        name = part["name"].strip()
        if name in found:
            raise UsageError(f"The replicas of '{name}' are given twice.", code="pack.replicas")
        found[name] = int(part["count"])
        place = part.end()
    if not found:
        raise _misread(text, names)
    return found


def _misread(text: str, names: list[str]) -> UsageError:
    return UsageError(
        f"Replicas must be written as MODEL=N joined by commas, such as {names[0]}=3. Got '{text}' instead.",
        code="pack.replicas",
        cure=f"The models are {', '.join(names)}." if len(names) > 1 else None,
    )


def _rows(packing: ModelPacking) -> Iterator[list[object]]:
    """One row for each slice."""
    from dippm.api.needed_memory import needed_of
    from dippm.predictors.prediction import round_figures

    for number, gpu in enumerate(packing.gpus):
        for each in gpu.slices:
            model = packing.find(each.name)
            low, high = needed_of(model.on_cards[gpu.device])
            device = packing.device_of(gpu, each)
            yield [
                number,
                gpu.device,
                each.profile or "whole",
                each.start,
                each.name,
                round(low, 1),
                round(high, 1),
                round(device.capacity_mb, 1),
                round_figures(model.on_slices[device.name].latency_ms),
            ]


def _summary(packing: ModelPacking) -> str:
    """How good the packing is."""
    from dippm.cli.figures import format_number_of

    count, result = len(packing.gpus), packing.packing
    text = format_number_of("GPU", count)
    if any(each.profile is not None for gpu in packing.gpus for each in gpu.slices):
        text += f", {format_number_of('compute slice', result.compute_slices)}"
    if packing.is_optimal:
        return f"{text}: proved to be the fewest."
    gpus = format_number_of("GPU", result.gpus_at_least)
    slices = format_number_of("compute slice", result.compute_slices_at_least)
    return (
        f"{text}: not proved to be the fewest; no packing takes fewer than {gpus} or, on {count}, fewer than {slices}."
    )


def _warnings(packing: ModelPacking) -> list[str]:
    """What the predictions of all models cannot vouch for; what holds for some alone is in the JSON."""
    first, *others = (
        [text for each in model.on_chosen_cards for text in each.warnings if not is_of_energy(text)]
        for model in packing.models
    )
    return [each for each in dict.fromkeys(first) if all(each in other for other in others)]


def _draw(packing: ModelPacking) -> None:
    """Each GPU as a row of memory slices, and below it what stands where."""
    from rich.text import Text

    from dippm.cli.figures import format_number_of

    console = make_console()
    styles = {model.name: _STYLES[number % len(_STYLES)] for number, model in enumerate(packing.models)}
    width = min(console.width, _WIDEST_PICTURE)
    first = 0
    # Neighbours that are sliced alike, for the same models, are drawn once.
    for gpu, alike in groupby(packing.gpus):
        last = first + sum(1 for _ in alike) - 1
        used = sum(each.compute_slices for each in gpu.slices)
        console.print(
            Text.assemble(
                (f"GPU {first}" if first == last else f"GPU {first} to {last}, each", "bold"),
                f"  {make_printable(gpu.device)}",
                (f"  {format_number_of('compute slice', used)} in use, {gpu.free_compute_slices} to be had", "dim"),
            )
        )
        if width > gpu.memory_slices * _NARROWEST_SLICE:
            for line in _picture(gpu, styles, width):
                console.print(line, no_wrap=True, crop=True)
        else:
            console.print(_list_slices(gpu, styles))
        first = last + 1
    console.print(_table(packing, styles))
    console.print(Text(_summary(packing), style="bold" if packing.is_optimal else "yellow"))
    for warning in _warnings(packing):
        console.print(Text(f"! {make_printable(warning)}", style="yellow"))


def _picture(gpu: PackedGpu, styles: dict[str, str], width: int) -> list[Text]:
    """A box for each slice, as wide as its memory slices, with dots where nothing stands."""
    from rich.text import Text

    unit = (width - 1) // gpu.memory_slices
    top, middle, below, bottom = Text("┌"), Text("│"), Text("│"), Text("└")
    position = 0
    boxes: list[tuple[int, str, str, str]] = []
    for each in gpu.slices:
        boxes += [(1, "·", "", "dim")] * (each.start - position)
        boxes.append((each.memory_slices, each.profile or "whole card", each.name, styles[each.name]))
        position = each.start + each.memory_slices
    boxes += [(1, "·", "", "dim")] * (gpu.memory_slices - position)
    for place, (slices, title, name, style) in enumerate(boxes):
        inner = slices * unit - 1
        is_last = place == len(boxes) - 1
        top.append("─" * inner + ("┐" if is_last else "┬"))
        bottom.append("─" * inner + ("┘" if is_last else "┴"))
        for line, text in ((middle, title), (below, name)):
            line.append(_cut(make_printable(text), inner).center(inner), style=style)
            line.append("│")
    return [top, middle, below, bottom]


def _list_slices(gpu: PackedGpu, styles: dict[str, str]) -> Padding:
    """A line for each slice, where there is no room for boxes."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    lines = Table.grid(padding=(0, 2, 0, 0))
    for each in gpu.slices:
        lines.add_row(
            Text(make_printable(each.profile or "whole card"), no_wrap=True),
            FoldedName(each.name, style=styles[each.name]),
        )
    return Padding(lines, (0, 0, 0, 2), expand=False)


def _cut(text: str, width: int) -> str:
    """The end of a text, which tells models apart better than the beginning."""
    return text if len(text) <= width else f"…{text[len(text) - width + 1 :]}"


def _table(packing: ModelPacking, styles: dict[str, str]) -> Table:
    """What each model needs, and what its slices have."""
    from rich.text import Text

    from dippm.api.needed_memory import needed_of
    from dippm.api.packing import device_of
    from dippm.cli.figures import format_figure, format_interval
    from dippm.cli.fitting_table import FittingTable

    table = FittingTable()
    table.add_column("model")
    table.add_column("replicas", justify="right", no_wrap=True)
    for title in ("slice", "needs, MiB", "has, MiB", "latency, ms"):
        table.add_column(title, justify="left" if title == "slice" else "right", no_wrap=True)
    has_kinds = len(packing.kinds) > 1
    placed = Counter((gpu.kind, each.name, each.profile) for gpu in packing.gpus for each in gpu.slices)
    for model in packing.models:
        for (kind, name, profile), count in placed.items():
            if name != model.name:
                continue
            card, device = packing.kinds[kind].device, device_of(packing.kinds, kind, profile)
            label = device.name if has_kinds else profile or "whole card"
            table.add_row(
                FoldedName(name, style=styles[name]),
                f"{count:,}",
                Text(make_printable(label)),
                format_interval(needed_of(model.on_cards[card.name])),
                f"{device.capacity_mb:,.0f}",
                format_figure(model.on_slices[device.name].latency_ms),
            )
    return table
