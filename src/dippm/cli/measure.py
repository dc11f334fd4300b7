"""``dippm measure``: run a model on a device of this machine, beside its prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from dippm.cli import options
from dippm.cli.output import SCHEMA, is_terminal, make_console, make_printable, print_columns, print_json, print_note
from dippm.cli.progress import CountBar

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.text import Text

    from dippm.api import Measured

__all__ = ["HELP", "EngineOption", "MeasuredDeviceOption", "measure"]

HELP = "Run a model on a device of this machine, and show what was measured beside what is predicted."

MeasuredDeviceOption = Annotated[
    str, typer.Option("--device", "-d", metavar="cpu|cuda[:N]", help="The device of this machine to measure on.")
]
EngineOption = Annotated[
    str | None,
    typer.Option("--engine", help="torch or onnxruntime; what the file is made for when left out.", show_default=False),
]

_FIGURES = ("latency_ms", "energy_j", "memory_mb")
_COLUMNS = (
    "device", "batch", "outcome", "latency_ms", "latency_std_ms", "energy_j", "memory_mb",
    "predicted_latency_ms", "predicted_latency_low", "predicted_latency_high",
    "predicted_energy_j", "predicted_energy_low", "predicted_energy_high",
    "predicted_memory_mb", "predicted_memory_low", "predicted_memory_high", "message",
)  # fmt: skip


def measure(
    model: options.ModelArgument,
    batch: options.BatchOption = None,
    input: options.InputOption = None,  # noqa: A002 - the contract's name
    device: MeasuredDeviceOption = "cpu",
    device_file: options.DeviceFileOption = None,
    precision: options.PrecisionOrHeldOption = None,
    mode: Annotated[str, typer.Option("--mode", "-m", help="inference, or training: one whole step.")] = "inference",
    optimizer: options.OptimizerOption = None,
    layout: options.LayoutOption = "nchw",
    runtime: Annotated[str, typer.Option("--runtime", help="eager, compile or cuda-graph.")] = "eager",
    engine: EngineOption = None,
    trust_pickle: options.TrustOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Run ``dippm measure``."""
    from dippm import api
    from dippm.measuring.measurement import Outcome

    bar = CountBar("measurements", "building and running the model")
    try:
        results = api.measure(
            model,
            batch=options.parse_batches(batch),
            input=input or None,
            device=device,
            device_spec=None if device_file is None else api.load_device_file(device_file),
            precision=precision,
            mode=mode,
            optimizer=optimizer,
            layout=layout,
            runtime=runtime,
            engine=engine,
            trust=trust_pickle,
        )
    finally:
        bar.close()
    if as_json:
        print_json({"schema": SCHEMA, "model": model, "measurements": [result.to_dict() for result in results]})
    elif is_terminal():
        make_console().print(_make_table(results))
    else:
        print_columns(_COLUMNS, (_row(result) for result in results))
        if results[0].prediction_note:
            print_note(f"! {results[0].prediction_note}")
        for warning in _warnings(results):
            print_note(f"! predicted: {warning}")
    if any(result.measurement.outcome is not Outcome.OK for result in results):
        raise typer.Exit(1)


def _row(result: Measured) -> list[object]:
    from dippm.predictors.prediction import round_figures

    measurement, prediction = result.measurement, result.prediction
    cells: list[object] = [measurement.device, result.configuration.batch, measurement.outcome.value]
    for name in ("latency_ms", "latency_std_ms", "energy_j", "memory_mb"):
        value = getattr(measurement, name)
        cells.append(None if value is None else round_figures(value))
    for name in _FIGURES:
        predicted = None if prediction is None else getattr(prediction, name)
        interval = (None, None) if prediction is None else prediction.intervals.get(name, (None, None))
        cells += [None if value is None else round_figures(value) for value in (predicted, *interval)]
    return [*cells, measurement.message]


def _warnings(results: Sequence[Measured]) -> list[str]:
    """Warnings of all predictions, each once."""
    predictions = [result.prediction for result in results if result.prediction is not None]
    return list(dict.fromkeys(warning for prediction in predictions for warning in prediction.warnings))


def _make_table(results: Sequence[Measured]) -> Group:
    from rich.console import Group
    from rich.text import Text

    from dippm.cli.fitting_table import FittingTable

    table = FittingTable()
    table.add_column("batch", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=len("predicted"))
    for title in ("latency, ms", "energy, J", "memory, MiB"):
        table.add_column(title, justify="right", no_wrap=True)
    for result in results:
        table.add_row(f"{result.configuration.batch:,}", "measured", *_measured_cells(result))
        if result.prediction is not None:
            table.add_row("", Text("predicted", style="dim"), *_predicted_cells(result))
    parts: list[RenderableType] = [_title(results[0]), table]
    for result in results:
        measurement = result.measurement
        if measurement.message:
            text = f"! batch {result.configuration.batch:,}: {measurement.outcome.value}: {measurement.message}"
            parts.append(Text(make_printable(text), style="yellow"))
    if results[0].prediction_note:
        parts.append(Text(f"! {make_printable(results[0].prediction_note)}", style="yellow"))
    predictions = [result.prediction for result in results if result.prediction is not None]
    parts += [Text(f"! predicted: {make_printable(warning)}", style="yellow") for warning in _warnings(results)]
    parts.append(Text(_provenance(results[0]), style="dim"))
    if predictions:
        predictor = predictions[0].predictor
        text = f"predicted [90 % interval] by {predictor.name} {predictor.version}, fitted on: {predictor.labels}"
        parts.append(Text(make_printable(text), style="dim"))
    return Group(*parts)


def _measured_cells(result: Measured) -> list[Text | str]:
    from rich.text import Text

    from dippm.cli.figures import format_figure

    measurement = result.measurement
    if measurement.latency_ms is None:
        return [Text(measurement.outcome.value, style="yellow"), "", ""]
    spread = "" if measurement.latency_std_ms is None else f" ± {format_figure(measurement.latency_std_ms)}"
    others = (measurement.energy_j, measurement.memory_mb)
    return [
        f"{format_figure(measurement.latency_ms)}{spread}",
        *(Text("unknown", style="dim") if value is None else format_figure(value) for value in others),
    ]


def _predicted_cells(result: Measured) -> list[Text]:
    from rich.text import Text

    from dippm.cli.figures import format_figure, format_interval

    prediction = result.prediction
    if prediction is None:
        return []
    cells = []
    for name in _FIGURES:
        value = getattr(prediction, name)
        text = "-" if value is None else f"{format_figure(value)}\n[{format_interval(prediction.intervals[name])}]"
        cells.append(Text(text, style="dim"))
    return cells


def _title(result: Measured) -> Text:
    from rich.text import Text

    conditions = result.configuration.conditions
    optimizer = "" if conditions.optimizer is None else f" with {conditions.optimizer.value}"
    return Text.assemble(
        (make_printable(result.model), "bold"),
        f" on {make_printable(result.measurement.device)}"
        f"\n{conditions.mode.value}{optimizer}, {conditions.precision.value}, {conditions.layout.value}, "
        f"{conditions.runtime.value}, {result.configuration.engine.value}",
    )


def _provenance(result: Measured) -> str:
    measurement, software = result.measurement, result.measurement.software
    return make_printable(
        f"mean of {measurement.timed_runs} calls after {measurement.warmup_runs} warm-ups; {software.framework}, "
        f"{software.threads} host threads"
    )
