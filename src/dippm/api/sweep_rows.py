"""The rows of one model: all its batches on all devices, and what is wrong where something is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dippm.api.batched_reading import read_for_batches
from dippm.api.loading import load
from dippm.api.prediction import predict
from dippm.api.refused_devices import find_refused
from dippm.api.sweep_settings import SweepSettings
from dippm.costs.conditions import Conditions
from dippm.costs.software import Software
from dippm.devices import DeviceSpec
from dippm.errors import DippmError, MissingExtraError
from dippm.graph import Graph
from dippm.predictors.prediction import ModelInfo, Prediction, round_figures

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "COLUMNS", "SweepTask", "decode_rows", "encode_rows", "fail_task", "frugal_pyarrow", "make_schema", "need_pyarrow",
    "predict_task",
]  # fmt: skip

#: Name and type of each column, in order; all but ``model``, ``status`` and ``warnings`` may be absent in a row.
COLUMNS: dict[str, str] = {
    "model": "string",
    "status": "string",
    "error_code": "string",
    "error": "string",
    "framework": "string",
    "nodes": "int64",
    "parameters": "int64",
    "frozen_parameters": "int64",
    "macs": "int64",
    "batch": "int64",
    "device": "string",
    "weights": "string",
    "mode": "string",
    "precision": "string",
    "layout": "string",
    "runtime": "string",
    "software": "string",
    "optimizer": "string",
    "accumulation": "int64",
    "checkpointing": "bool",
    "lora": "string",
    "latency_ms": "float64",
    "latency_low": "float64",
    "latency_high": "float64",
    "energy_j": "float64",
    "energy_low": "float64",
    "energy_high": "float64",
    "memory_mb": "float64",
    "memory_low": "float64",
    "memory_high": "float64",
    "mig": "string",
    "step_time_ms": "float64",
    "predictor": "string",
    "predictor_version": "string",
    "warnings": "list",
}

_OK, _ERROR = "ok", "error"
_NO_MEMORY, _NO_MEMORY_WORDS = "worker.memory", "There is not enough memory for it."
# So many predictions at once, and so many batches: the arrays behind them have a row per batch and operator.
_AT_ONCE = 1024
_BATCHES_AT_ONCE = 64
# These are said of a model whatever its batch and device.
_OF_THE_MODEL = frozenset(
    {"graph.empty", "graph.invalid", "optimizer.complex", "training.no_loss", "training.nothing_to_train"}
)
# A file may say what it likes, and a row travels.
_LONGEST_TEXT, _MOST_WARNINGS = 1000, 20
_LARGEST_INT64 = 2**63 - 1

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepTask:
    """One model and the batches at which it is asked for, on all devices.

    Args:
        index: Its place among all tasks.
        model: Path or name.
        batches: Batch sizes.
    """

    index: int
    model: str
    batches: tuple[int, ...]


def need_pyarrow() -> None:
    """Make sure that tables can be written.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    if find_spec("pyarrow") is None:
        raise MissingExtraError(package="pyarrow", extra="sweep", purpose="write the tables of a sweep")


@contextmanager
def frugal_pyarrow() -> Iterator[None]:
    """Have pyarrow give back memory that is free; the allocator that it chooses by itself keeps what it once took."""
    import pyarrow

    usual = pyarrow.default_memory_pool()
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    try:
        yield
    finally:
        pyarrow.set_memory_pool(usual)


def make_schema() -> pyarrow.Schema:
    """The schema of all tables of rows."""
    import pyarrow

    types = {
        "string": pyarrow.string(),
        "int64": pyarrow.int64(),
        "float64": pyarrow.float64(),
        "bool": pyarrow.bool_(),
        "list": pyarrow.list_(pyarrow.string()),
    }
    return pyarrow.schema([(name, types[kind]) for name, kind in COLUMNS.items()])


def predict_task(task: SweepTask, settings: SweepSettings) -> pyarrow.Table:
    """The rows of a task: batch by batch, each on all devices; where something holds for several, one row for all."""
    try:
        return _as_table(list(_rows(task, settings)))
    except MemoryError:
        return fail_task(task, settings, code=_NO_MEMORY, error=_NO_MEMORY_WORDS)
    except Exception as exc:  # noqa: BLE001 - what a file makes of its rows must not end the others
        return fail_task(task, settings, code="internal", error=f"{type(exc).__name__}: {exc}")


def fail_task(task: SweepTask, settings: SweepSettings, *, code: str, error: str) -> pyarrow.Table:
    """The one row of a task of which nothing else is known."""
    return _as_table([_error_row(task, settings, code=code, error=error)])


def encode_rows(rows: pyarrow.Table) -> bytes:
    """Rows as an Arrow stream, to travel."""
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())


def decode_rows(encoded: bytes) -> pyarrow.Table:
    """Rows that have travelled."""
    import pyarrow

    with pyarrow.ipc.open_stream(pyarrow.py_buffer(encoded)) as stream:
        return stream.read_all()


def _as_table(rows: Sequence[Row]) -> pyarrow.Table:
    import pyarrow

    schema = make_schema()
    columns = {name: [_make_safe(name, row.get(name)) for row in rows] for name in COLUMNS}
    return pyarrow.table(columns, schema=schema)


def _make_safe(name: str, value: Any) -> Any:
    """A value as a table takes it: texts in Unicode, and no longer or more than anybody reads."""
    if isinstance(value, str):
        # A path is told whole.
        short = value if name == "model" or len(value) <= _LONGEST_TEXT else f"{value[: _LONGEST_TEXT - 3]}..."
        return short if short.isascii() else short.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list):
        more = len(value) - _MOST_WARNINGS
        told = [_make_safe(name, each) for each in value[:_MOST_WARNINGS]]
        return told if more <= 0 else [*told, f"{more:,} more are left out."]
    return value


def _rows(task: SweepTask, settings: SweepSettings) -> Iterator[Row]:
    try:
        read = partial(_read, task, settings)
        for graph, batches in read_for_batches(read, task.batches):
            if isinstance(graph, Graph):
                yield from _rows_of(task, graph, batches, settings)
            else:
                yield _error_row(task, settings, code=graph.code, error=str(graph), batch=batches[0])
    except DippmError as exc:
        yield _error_row(task, settings, code=exc.code, error=str(exc))
    except MemoryError:
        yield _error_row(task, settings, code=_NO_MEMORY, error=_NO_MEMORY_WORDS)
    except Exception as exc:  # noqa: BLE001 - libraries raise what they like; one model must not end the others
        yield _error_row(task, settings, code="internal", error=f"{type(exc).__name__}: {exc}")


def _read(task: SweepTask, settings: SweepSettings, batch: int) -> Graph:
    return load(task.model, batch_hint=batch, **settings.reading)


def _rows_of(task: SweepTask, graph: Graph, batches: Sequence[int], settings: SweepSettings) -> Iterator[Row]:
    info = ModelInfo.of(graph)
    step = max(1, min(_BATCHES_AT_ONCE, _AT_ONCE // len(settings.devices)))
    errors = _refused_devices(settings)
    answering = [place for place in range(len(settings.devices)) if place not in errors]
    for start in range(0, len(batches), step):
        together = list(batches[start : start + step])
        places = [(b, d) for b in range(len(together)) for d in range(len(settings.devices))]
        answers: dict[tuple[int, int], Prediction | DippmError] = {(b, d): errors[d] for b, d in places if d in errors}
        try:
            if answering:
                answers |= _predict(graph, together, settings, (0, len(together)), answering)
        except _ModelRefusedError as refused:
            yield _error_row(task, settings, code=refused.error.code, error=str(refused.error), info=info)
            return
        for b, d in places:
            answer = answers[b, d]
            if isinstance(answer, Prediction):
                yield _row(task, answer, settings)
            else:
                device = settings.devices[d]
                yield _error_row(
                    task,
                    settings,
                    code=answer.code,
                    error=str(answer),
                    batch=together[b],
                    device=None if device is None else getattr(device, "name", str(device)),
                    info=info,
                )


class _ModelRefusedError(Exception):
    """A model is refused whatever the batch and the device."""

    def __init__(self, error: DippmError) -> None:
        super().__init__(str(error))
        self.error = error


def _refused_devices(settings: SweepSettings) -> dict[int, DippmError]:
    """Why devices cannot run what is asked, by their places: no model is worked out for these."""
    specs = {place: each for place, each in enumerate(settings.devices) if isinstance(each, DeviceSpec)}
    if settings.options["predictor"] is not None:
        return {}
    refused = find_refused(specs.values(), runtime=settings.conditions.runtime, software=settings.software)
    return {place: each.error for each in refused for place, spec in specs.items() if spec == each.device}


def _predict(
    graph: Graph, batches: Sequence[int], settings: SweepSettings, b: tuple[int, int], d: Sequence[int]
) -> Iterator[tuple[tuple[int, int], Prediction | DippmError]]:
    """Answers by place of batch and device. What is refused together is asked for in halves."""
    devices = [settings.devices[place] for place in d]
    try:
        answers = predict(
            graph,
            batch=batches[b[0] : b[1]],
            device=None if devices == [None] else devices,  # type: ignore[arg-type]
            **settings.options,
        )
    except DippmError as exc:
        if exc.code in _OF_THE_MODEL:
            raise _ModelRefusedError(exc) from exc
        halves: list[tuple[tuple[int, int], Sequence[int]]]
        if len(d) > 1:
            halves = [(b, d[: len(d) // 2]), (b, d[len(d) // 2 :])]
        elif b[1] - b[0] > 1:
            middle = (b[0] + b[1]) // 2
            halves = [((b[0], middle), d), ((middle, b[1]), d)]
        else:
            yield (b[0], d[0]), exc
            return
        for of_batches, of_devices in halves:
            yield from _predict(graph, batches, settings, of_batches, of_devices)
        return
    places = ((batch, device) for device in d for batch in range(*b))
    yield from zip(places, answers, strict=True)


def _row(task: SweepTask, answer: Prediction, settings: SweepSettings) -> Row:
    row: Row = {
        "model": task.model,
        "status": _OK,
        **_of_model(answer.model),
        "macs": _as_int64(answer.macs),
        "batch": answer.batch,
        "device": answer.device,
        "weights": settings.reading["weights"],
        **_of_conditions(answer.conditions, answer.software),
        "mig": answer.mig,
        "step_time_ms": _round(answer.step_time_ms),
        "predictor": answer.predictor.name,
        "predictor_version": answer.predictor.version,
        "warnings": list(answer.predictor.warnings),
    }
    for name, value in (
        ("latency_ms", answer.latency_ms),
        ("energy_j", answer.energy_j),
        ("memory_mb", answer.memory_mb),
    ):
        words = name.partition("_")[0]
        low, high = answer.intervals.get(name, (None, None))
        row |= {name: _round(value), f"{words}_low": _round(low), f"{words}_high": _round(high)}
    return row


def _error_row(
    task: SweepTask,
    settings: SweepSettings,
    *,
    code: str,
    error: str,
    batch: int | None = None,
    device: str | None = None,
    info: ModelInfo | None = None,
) -> Row:
    return {
        "model": task.model,
        "status": _ERROR,
        "error_code": code,
        "error": error,
        **({} if info is None else _of_model(info)),
        "batch": batch,
        "device": device,
        "weights": settings.reading["weights"],
        **_of_conditions(settings.conditions, settings.software),
        "warnings": [],
    }


def _of_model(info: ModelInfo) -> Row:
    return {
        "framework": info.framework,
        "nodes": info.nodes,
        "parameters": _as_int64(info.parameters),
        "frozen_parameters": _as_int64(info.frozen_parameters),
    }


def _of_conditions(conditions: Conditions, software: Software | None) -> Row:
    """What was asked; what concerns training alone is left out at inference."""
    row: Row = {
        "mode": conditions.mode.value,
        "precision": conditions.precision.value,
        "layout": conditions.layout.value,
        "runtime": conditions.runtime.value,
        "software": None if software is None else str(software),
    }
    if conditions.optimizer is not None:
        row |= {
            "optimizer": conditions.optimizer.value,
            "accumulation": conditions.accumulation,
            "checkpointing": conditions.is_checkpointed,
            "lora": None if conditions.adapters is None else str(conditions.adapters),
        }
    return row


def _as_int64(value: int) -> int | None:
    return value if value <= _LARGEST_INT64 else None


def _round(value: float | None) -> float | None:
    return None if value is None else round_figures(value)
