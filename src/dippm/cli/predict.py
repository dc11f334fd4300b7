"""``dippm predict``: latency, energy, memory and MIG slice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dippm.api.question import Options, Question
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
from dippm.cli.shared_options import with_shared_options
from dippm.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.text import Text

    from dippm.api import DeviceSpec, Prediction

__all__ = [
    "HELP",
    "find_device",
    "find_devices",
    "is_of_energy",
    "make_table",
    "make_title",
    "memory_lines",
    "notes_of",
    "predict",
    "print_heading",
    "refused_entry",
]

HELP = "Predict latency, energy, memory and the MIG slice."

_COLUMNS = (
    "device", "batch", "latency_ms", "latency_low", "latency_high", "energy_j", "energy_low", "energy_high",
    "memory_mb", "memory_low", "memory_high", "mig",
)  # fmt: skip
# The name of a slice is whole in a terminal of 80 columns; longer names take the room that there is.
_LONGEST_WHOLE = 21
_OF_ENERGY = re.compile(r"(^|: )Energy ")


@with_shared_options
def predict(
    model: options.ModelArgument,
    *,
    batch: options.BatchOption = None,
    device: options.DeviceOption = None,
    device_file: options.DeviceFileOption = None,
    asked: Options,
    predictor: options.PredictorOption = None,
    mig_policy: options.MigPolicyOption = "safe",
    output_format: options.FormatOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Run ``dippm predict``."""
    from dippm import api

    as_kubernetes = options.is_kubernetes(output_format, as_json=as_json)
    devices = find_devices(device, device_file, predictor)
    predictions = api.predict(
        model,
        batch=options.parse_batches(batch),
        device=devices,
        mig_policy=mig_policy,
        predictor=predictor,
        **asked,
    )
    if as_kubernetes:
        print_text(_kubernetes(predictions, devices))
    elif as_json:
        print_json(
            {
                "schema": SCHEMA,
                "model": predictions[0].model.to_dict(),
                "predictions": [prediction.to_dict() for prediction in predictions],
                **refused_entry(devices, predictor, asked),
            }
        )
    elif is_terminal():
        make_console().print(make_table(predictions))
    else:
        print_heading(predictions)
        print_columns(_COLUMNS, (_row(prediction) for prediction in predictions))
        for note in notes_of(predictions):
            print_note(f"! {note}")


def find_devices(
    given: list[str] | None, file: str | None, predictor: str | None
) -> list[DeviceSpec] | list[str] | None:
    """Devices to predict for; with a trained predictor the one name given, which the catalogue need not know.

    Raises:
        UsageError: ``device.unused``, or those of :func:`dippm.cli.options.find_devices`.
    """
    if predictor is None:
        return options.find_devices(given, file)
    if file is not None:
        raise UsageError(
            "A trained predictor holds for the device of its labels alone.",
            code="device.unused",
            cure="Leave --device-file out.",
        )
    return None if given is None else [",".join(given)]


def find_device(name: str | None, file: str | None, predictor: str | None) -> DeviceSpec | str | None:
    """The same for a command that takes one device.

    Raises:
        UsageError: ``device.unused``, or those of :func:`dippm.cli.options.find_one_device`.
    """
    if predictor is None:
        return options.find_one_device(name, file)
    found = find_devices(None if name is None else [name], file, predictor)
    return found[0] if found else None


def refused_entry(
    devices: Sequence[DeviceSpec | str] | None, predictor: str | None, asked: Options
) -> dict[str, object]:
    """``refused`` of an answer's JSON, where devices are left out; a predictor of the caller's knows one alone."""
    from dippm.api import refused_devices

    return {} if predictor is not None else refused_devices.refused_entry(devices, Question(**asked))


def _kubernetes(predictions: Sequence[Prediction], devices: Sequence[DeviceSpec | str] | None) -> str:
    """The manifest's fragment of one prediction."""
    from dippm import api

    if len(predictions) > 1:
        raise UsageError(
            f"A pod asks for one slice, and these are {len(predictions)} predictions.",
            code="format.several",
            cure="Give one batch size and one device, or see dippm pack.",
        )
    specs = [each for each in devices or () if not isinstance(each, str) and each.name == predictions[0].device]
    return api.pod_fragment(predictions[0], specs[0] if specs else None)


def _row(prediction: Prediction) -> list[object]:
    from dippm.predictors.prediction import round_figures

    cells: list[object] = [prediction.device, prediction.batch]
    for name in ("latency_ms", "energy_j", "memory_mb"):
        value = getattr(prediction, name)
        ends = prediction.intervals.get(name, (None, None))
        cells += [None if each is None else round_figures(each) for each in (value, *ends)]
    return [*cells, prediction.mig_name]


def notes_of(predictions: Sequence[Prediction]) -> list[str]:
    """Warnings of all predictions in order; one that differs in its figures alone stands once, with where it holds."""
    from dippm.predictors.warning_order import order_warnings

    holders: dict[str, list[tuple[str, Prediction]]] = {}
    for prediction in predictions:
        for warning in prediction.warnings:
            key = re.sub(r"\d[\d.,]*", "#", warning.replace(prediction.device, "#"))
            holders.setdefault(key, []).append((warning, prediction))
    notes = []
    place = {text: at for at, text in enumerate(order_warnings(found[0][0] for found in holders.values()))}
    for found in sorted(holders.values(), key=lambda found: place[found[0][0]]):
        warning, first = found[0]
        where = ""
        if len(found) < len(predictions):
            where = f"{first.device}, batch {first.batch:,}: "
        others = len({text for text, _ in found}) - 1
        more = len(found) - 1 if where else others
        notes.append(f"{where}{warning}" + (f" (and {more} more like it)" if more else ""))
    return notes


def is_of_energy(note: str) -> bool:
    """Whether a warning is of the energy alone: a table without the energy has no need of it."""
    return _OF_ENERGY.search(note) is not None


def print_heading(predictions: Sequence[Prediction], *, with_memory: bool = True) -> None:
    """Say on stderr what stands round the rows of :func:`make_table`: model, conditions, shapes, memory by parts."""
    for line in (*_title_lines(predictions[0]), *(memory_lines(predictions) if with_memory else ())):
        print_note(line)


def make_table(predictions: Sequence[Prediction]) -> Group:
    """Everything that a person wants to know of these predictions, which share model and conditions."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from dippm.cli.fitting_table import FittingTable

    first = predictions[0]
    table = FittingTable()
    longest = max(len(prediction.device) for prediction in predictions)
    table.add_column("device", no_wrap=longest <= _LONGEST_WHOLE)
    table.add_column("batch", justify="right", no_wrap=True, min_width=len("batch"))
    time = "latency, ms" if first.step_time_ms is None else "step, ms"
    for title in (time, "energy, J", "memory, MiB"):
        table.add_column(title, justify="right")  # intervals take two lines where all else has no room
    table.add_column("MIG", no_wrap=True, min_width=max(len(each.mig_name) for each in predictions))
    previous = None
    for prediction in predictions:
        table.add_row(
            "" if prediction.device == previous else FoldedName(prediction.device),
            f"{prediction.batch:,}",
            _figure(prediction, "latency_ms"),
            _figure(prediction, "energy_j"),
            _figure(prediction, "memory_mb"),
            Text(prediction.mig_name, style="" if prediction.mig else "dim"),
        )
        previous = prediction.device
    parts: list[RenderableType] = [make_title(first), table]
    parts += [Text(line) for line in memory_lines(predictions)]
    parts += [Padding(Text(f"! {make_printable(note)}", style="yellow")) for note in notes_of(predictions)]
    of_slices = "MIG: the smallest slice with room; latency and energy are those of the whole device. "
    parts.append(
        Text(
            f"[90 % interval]. {of_slices if any(each.mig for each in predictions) else ''}"
            f"{make_printable(first.predictor.name)} {make_printable(first.predictor.version)}, "
            f"fitted on: {make_printable(first.predictor.labels)}",
            style="dim",
        )
    )
    return Group(*parts)


def make_title(prediction: Prediction) -> Group:
    """What a table is about: the model's name, its size, and the conditions with the shapes of its inputs."""
    from rich.console import Group
    from rich.text import Text

    source, *lines = _title_lines(prediction)
    return Group(FoldedName(source, style="bold"), Text("\n".join(lines)))


def _title_lines(prediction: Prediction) -> tuple[str, str, str]:
    from dippm.cli.figures import format_count, format_number_of, format_shape

    model, conditions = prediction.model, prediction.conditions
    step = "" if conditions.optimizer is None else f" by {conditions.optimizer.value}"
    if conditions.accumulation > 1:
        step += f", {conditions.accumulation} batches a step"
    if conditions.is_checkpointed:
        step += ", checkpointed"
    if conditions.adapters is not None:
        step += f", adapters of rank {conditions.adapters}"
    count = f"{model.parameters:,} parameters"
    if conditions.adapters is not None:
        count = f"{model.parameters:,} trained beside {model.frozen_parameters:,} parameters"
    for dtype, quantised in model.quantised_weights.items():
        count += f", {quantised:,} in {dtype}"
    # An input that all samples share, or whose batch is not in front, is shown whole.
    inputs = ", ".join(
        f"{make_printable(name)} {format_shape(shape[1:] if shape[:1] == (prediction.batch,) else shape)}"
        for name, shape in prediction.inputs.items()
    )
    return (
        make_printable(model.source),
        f"{model.framework}, {format_number_of('operator', model.nodes)}, {count}, "
        f"{format_count(prediction.macs / (prediction.batch * conditions.accumulation))}MACs a sample",
        f"{conditions.mode.value}{step}, {conditions.precision.value}, {conditions.layout.value}, "
        f"{conditions.runtime.value}; {inputs}",
    )


def memory_lines(predictions: Sequence[Prediction]) -> list[str]:
    """The parts of the memory where there is one prediction, and nothing where there are several."""
    from dippm.cli.figures import format_figure

    parts = predictions[0].memory_parts_mb
    if len(predictions) > 1 or not parts:
        return []
    shown = (f"{name.replace('_', ' ')} {format_figure(value)}" for name, value in parts.items() if value >= 0.5)
    return ["memory = " + " + ".join(shown)]


def _figure(prediction: Prediction, name: str) -> Text:
    from rich.text import Text

    from dippm.cli.figures import format_figure, format_interval

    value = getattr(prediction, name)
    if value is None:
        return Text("-", style="dim")
    if name not in prediction.intervals:
        return Text(format_figure(value))
    return Text.assemble(format_figure(value), "\n", (f"[{format_interval(prediction.intervals[name])}]", "dim"))
