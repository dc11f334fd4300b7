"""The shipped predictor on the labels of one GPU: how far time, energy, power and memory are off.

    python -m dippm.evaluation.own_labels --labels data/labels/h200/labels.parquet --cache build/graphs \
        --report docs/reports/h200.md

Rows in which the device is what counts stand apart from the others: those that never wait for the host between kernels,
as captured graphs do not, and that nothing else on the machine disturbed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dippm.costs.conditions import Conditions, Layout, Mode, Runtime
from dippm.costs.precision import whole_model_type
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.label_graphs import build_label_graphs, load_label_graph
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.selection import is_disturbed, is_steady
from dippm.datasets.software_graphs import as_measured, software_of
from dippm.datasets.store.label import OWN_SOURCE, Label
from dippm.datasets.store.parquet import read_parquet
from dippm.devices import find_device
from dippm.errors import UsageError
from dippm.evaluation.report_page import Section, Table, render_markdown
from dippm.graph import Graph
from dippm.measuring.measurement import Outcome
from dippm.predictors.calibration import ARTEFACT_PATH, TRAINING_ARTEFACT_PATH, Calibration
from dippm.predictors.physics import PhysicsPredictor

__all__ = [
    "Figure",
    "LabelReport",
    "LabelScore",
    "choose_labels",
    "evaluate_labels",
    "main",
    "score_label",
    "sections_of",
]

_WORST = 20
_CALIBRATIONS = {Mode.INFERENCE: ARTEFACT_PATH, Mode.TRAINING: TRAINING_ARTEFACT_PATH}
_CONTEXT = "context"
# The smallest segment of PyTorch's caching allocator.
_CLOSE_MB = 2.0
# Until then `dippm.measuring.inference.converted` changed weights on the device.
_CONVERTED_ON_HOST_SINCE = "2026-11-27T09:00:00+00:00"
_UNKNOWN = "-"
_ALL = "all"
_CONDITIONS = ("mode", "precision", "layout", "runtime")
_ERRORS = ("rows", "mean absolute error, %", "median, %", "bias, %")
_HEADER = (*_ERRORS, "in interval, %")


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One figure, measured and predicted.

    Args:
        measured: What was measured.
        predicted: What is predicted.
        low: Lower end of the 90 % interval; None where the figure has none.
        high: Upper end.
    """

    measured: float
    predicted: float
    low: float | None = None
    high: float | None = None

    @property
    def error_percent(self) -> float:
        """Signed relative error, %."""
        return 100.0 * (self.predicted / self.measured - 1.0)

    @property
    def is_covered(self) -> bool | None:
        """Whether the interval holds the measurement; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelScore:
    """One label, measured and predicted.

    Args:
        device: Device, as the label names it.
        family: Family of the model.
        batch: Samples per call.
        input_size: Size of a sample of each input, such as ``"3x224x224"``.
        conditions: How it was run.
        is_steady: Whether the device is what counts: captured calls that scatter by less than a tenth, and others that
            scatter so little that it never waits for the host; None where their scatter is not known.
        latency: Time of a call, ms.
        energy: Energy of a call, J; None where it was not measured or is not predicted.
        power: Mean power over a call, W, predicted for the measured time; likewise. It has no interval.
        memory: Device memory of the process, MiB; None alike.
        reserved: The same without the context, MiB: what PyTorch's allocator reserved. It has no interval.
        is_memory_sound: Whether nothing but the call was held, so that its memory counts.
    """

    device: str
    family: str
    batch: int
    input_size: str
    conditions: Conditions
    is_steady: bool | None
    latency: Figure
    energy: Figure | None = None
    power: Figure | None = None
    memory: Figure | None = None
    reserved: Figure | None = None
    is_memory_sound: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelReport:
    """All labels of a file.

    Args:
        scores: All that were predicted.
        left_out: Why the others could not be, one line each.
    """

    scores: tuple[LabelScore, ...]
    left_out: tuple[str, ...] = ()

    def chosen(self, *, steady: bool | None = None, kind: str | None = None) -> list[LabelScore]:
        """Scores of one kind of rows; None for all. What is not known to be steady is not."""
        return [
            score
            for score in self.scores
            if steady in (None, bool(score.is_steady)) and kind in (None, _ALL, *_kinds_of(score))
        ]

    @property
    def kinds(self) -> list[str]:
        """Names of the kinds of rows that there are, that of all first."""
        return [_ALL, *sorted({kind for score in self.scores for kind in _kinds_of(score)})]

    @property
    def worst(self) -> list[LabelScore]:
        """The steady rows whose time is furthest off, by as many times, the worst first."""
        return sorted(self.chosen(steady=True), key=_distance, reverse=True)[:_WORST]


def choose_labels(labels: Iterable[Label]) -> list[Label]:
    """First measurements of our own that ended well, with a time that no tracer made longer.

    Raises:
        UsageError: ``labels.none`` where there is none, ``labels.ambiguous`` where they are of several devices.
    """
    chosen = [
        label
        for label in labels
        if label.repeat == 0
        and label.source == OWN_SOURCE
        and label.measurement.outcome is Outcome.OK
        and label.measurement.latency_ms
    ]
    devices = sorted({label.measurement.device for label in chosen})
    if not devices:
        raise UsageError("No label is a first measurement that ended well.", code="labels.none")
    if len(devices) > 1:
        raise UsageError(
            f"The labels are of {len(devices)} devices: {', '.join(devices)}. The report is of one.",
            code="labels.ambiguous",
        )
    return chosen


def evaluate_labels(labels: Sequence[Label], cache: GraphCache, *, jobs: int = 1) -> LabelReport:
    """Predict every label.

    Args:
        labels: Labels that ended well, see :func:`choose_labels`.
        cache: Graphs by recipe; those that it lacks are built.
        jobs: Processes that build graphs at the same time.

    Raises:
        UsageError: As :func:`dippm.datasets.label_graphs.build_label_graphs`.
        UnsupportedError: As :meth:`dippm.predictors.physics.PhysicsPredictor.predict`.
    """
    failures = build_label_graphs(labels, cache, jobs=jobs)
    reasons = {failure.recipe.model_key: failure.reason for failure in failures}
    predictor = PhysicsPredictor.load()
    scores, left_out = [], []
    for label in labels:
        cached = load_label_graph(label, cache)
        if cached is None:
            reason = reasons.get(label.recipe.model_key, "Its graph is not in the cache.")
            left_out.append(f"{label.recipe.family}, batch {label.recipe.batch}: {reason}")
        else:
            scores.append(score_label(predictor, cached.graph, label))
    return LabelReport(scores=tuple(scores), left_out=tuple(left_out))


def score_label(predictor: PhysicsPredictor, graph: Graph, label: Label) -> LabelScore:
    """Predict one label that ended well.

    Args:
        predictor: The predictor.
        graph: The model's graph, as it is read today.
        label: The measurement.

    Raises:
        UnsupportedError: As :meth:`dippm.predictors.physics.PhysicsPredictor.predict`.
    """
    conditions, measurement = label.configuration.conditions, label.measurement
    (prediction,) = predictor.predict(
        as_measured(graph, label),
        batches=[label.recipe.batch],
        devices=[find_device(measurement.device)],
        conditions=conditions,
        software=software_of(measurement.software.framework),
    )
    is_captured = conditions.runtime is Runtime.CUDA_GRAPH
    intervals, memory_mb = prediction.intervals, prediction.memory_mb
    context_mb = prediction.memory_parts_mb.get(_CONTEXT)
    without_context = None if memory_mb is None or context_mb is None else memory_mb - context_mb
    low, high = intervals["latency_ms"]
    return LabelScore(
        device=measurement.device,
        family=label.recipe.family,
        batch=label.recipe.batch,
        input_size=_input_size(label.recipe),
        conditions=conditions,
        is_steady=not is_disturbed(measurement) if is_captured else is_steady(measurement),
        latency=Figure(
            measured=measurement.latency_ms or float("nan"), predicted=prediction.latency_ms, low=low, high=high
        ),
        energy=_figure(measurement.energy_j, prediction.energy_j, intervals.get("energy_j")),
        power=None if measurement.energy_j is None else _power_at_measured_time(predictor, graph, label),
        memory=_figure(measurement.memory_mb, memory_mb, intervals.get("memory_mb")),
        reserved=_figure(measurement.reserved_peak_mb, without_context, None),
        is_memory_sound=not _holds_what_was_converted(label),
    )


def _holds_what_was_converted(label: Label) -> bool:
    """Whether the allocator still held weights of before their conversion, which was made on the device at first."""
    conditions = label.configuration.conditions
    is_converted = conditions.layout is Layout.NHWC or whole_model_type(conditions.precision) is not None
    return is_converted and label.measurement.measured_at < _CONVERTED_ON_HOST_SINCE


def sections_of(report: LabelReport, *, command: str) -> list[Section]:
    """The report's parts.

    Args:
        report: The labels, at least one.
        command: The command that makes the report.
    """
    device = report.scores[0].device
    close = [f"{share:.0%} of the rows of {mode}" for mode in Mode if (share := _share_close(report, mode)) is not None]
    steady, others = len(report.chosen(steady=True)), len(report.chosen(steady=False))
    text = [
        f"Every first measurement of {device} that ended well, {len(report.scores)} in number, beside what the shipped "
        f"predictor says of it under the software of that run. In {steady} rows the device is what counts: they were "
        "captured and scatter by less than a tenth, or their calls scatter so little that it cannot have waited for "
        f"the host. In the {others} others it may have waited, something else may have held the machine, or "
        "nothing says so. No figure here answers a question about another host: calls of small batches wait for the "
        "host of the machine that was measured, and the errors of the others are errors about that host too.",
        "Errors are in percent of the measured figure; the bias is the median of the signed errors, and the interval "
        "the one that should hold 90 % of the measurements. The artefacts in `src/dippm/predictors/artefact` name the "
        "labels that the predictor's coefficients were chosen on: where these are among them, the errors are not "
        f"those of rows that it has not seen. Made by `{command}`.",
    ]
    if report.left_out:
        text.append(f"{len(report.left_out)} labels could not be predicted. {' '.join(report.left_out)}")
    return [
        Section(title="What this is", text=text),
        Section(title="Time", tables=[_by_kind(report, _latency)]),
        Section(
            title="Energy",
            text=[
                "Energy was measured for a part of the rows. Power is energy over time, and predicted for the measured "
                "time; it has no interval of its own."
            ],
            tables=[
                _by_kind(report, _energy, caption="Energy of a call"),
                _by_kind(report, _power, caption="Power at the measured time", has_interval=False),
            ],
        ),
        Section(
            title="Memory",
            text=[
                "A process that has run other models before holds a larger context. Without the context, what "
                "PyTorch's allocator reserved at its peak is compared with the prediction less its context, "
                f"which has no interval of its own: the two are the same within {_CLOSE_MB:.0f} MiB in "
                f"{' and '.join(close) or 'no row'}. Segments have 2 MiB and more.{_left_out_of_memory(report)}"
            ],
            tables=[
                _by_kind(report, _memory, caption="Memory of the process"),
                _by_kind(report, _reserved, caption="Memory without the context", has_interval=False),
            ],
        ),
        Section(
            title="Time by family, where the device is what counts",
            tables=[_by_family(report, runtime) for runtime in Runtime if _has_steady(report, runtime)],
        ),
        Section(title=f"The worst {_WORST} rows in which the device is what counts", tables=[_worst_table(report)]),
    ]


def _left_out_of_memory(report: LabelReport) -> str:
    count = sum(not score.is_memory_sound and score.memory is not None for score in report.scores)
    if not count:
        return ""
    return (
        " Rows whose weights were converted to NHWC or to 16 bits on the device before the call are no part of these "
        f"tables, {count} in number: the allocator still held what they had taken before."
    )


def _share_close(report: LabelReport, mode: Mode) -> float | None:
    """Share of a mode's rows whose memory without the context is met within a segment, None where there are none."""
    known = [figure for score in report.scores if score.conditions.mode is mode and (figure := _reserved(score))]
    close = [figure for figure in known if abs(figure.predicted - figure.measured) <= _CLOSE_MB]
    return len(close) / len(known) if known else None


def _kinds_of(score: LabelScore) -> tuple[str, str]:
    """All of its mode and runtime, and its conditions."""
    conditions = score.conditions
    words = [conditions.mode.value, conditions.precision.value]
    words += [] if conditions.layout is Layout.NCHW else [conditions.layout.value]
    words += [] if conditions.runtime is Runtime.EAGER else [conditions.runtime.value]
    return f"{_ALL} {conditions.mode}, {conditions.runtime}", ", ".join(words)


def _has_steady(report: LabelReport, runtime: Runtime) -> bool:
    return any(score.conditions.runtime is runtime for score in report.chosen(steady=True))


def _latency(score: LabelScore) -> Figure | None:
    return score.latency


def _energy(score: LabelScore) -> Figure | None:
    return score.energy


def _power_at_measured_time(predictor: PhysicsPredictor, graph: Graph, label: Label) -> Figure | None:
    conditions, measurement = label.configuration.conditions, label.measurement
    latency_ms, device = measurement.latency_ms or float("nan"), find_device(measurement.device)
    load = predictor.load_of(
        as_measured(graph, label),
        batch=label.recipe.batch,
        device=device,
        conditions=conditions,
        software=software_of(measurement.software.framework),
    )
    predicted_w = load.power_w(Calibration.read(_CALIBRATIONS[conditions.mode]).power, device, np.array([latency_ms]))
    return _figure(1e3 * (measurement.energy_j or float("nan")) / latency_ms, float(predicted_w[0]), None)


def _power(score: LabelScore) -> Figure | None:
    return score.power


def _memory(score: LabelScore) -> Figure | None:
    return score.memory if score.is_memory_sound else None


def _reserved(score: LabelScore) -> Figure | None:
    return score.reserved if score.is_memory_sound else None


def _by_kind(
    report: LabelReport, read: Callable[[LabelScore], Figure | None], *, caption: str = "", has_interval: bool = True
) -> Table:
    """Errors of a figure in all rows, then by conditions, each split by whether the device is what counts."""
    rows = []
    for name in report.kinds:
        for steady, part in ((True, "device counts"), (False, "others")):
            chosen = report.chosen(steady=steady, kind=name)
            figures = [figure for score in chosen if (figure := read(score)) is not None]
            if figures:
                cells = _summarize(figures)
                rows.append([f"{name}: {part}", *(cells if has_interval else cells[: len(_ERRORS)])])
    return Table(header=["rows of", *(_HEADER if has_interval else _ERRORS)], rows=rows, caption=caption)


def _by_family(report: LabelReport, runtime: Runtime) -> Table:
    steady = [score for score in report.chosen(steady=True) if score.conditions.runtime is runtime]
    families = sorted({score.family for score in steady})
    return Table(
        caption=f"Runtime {runtime}",
        header=["family", *_HEADER],
        rows=[
            [family, *_summarize([score.latency for score in steady if score.family == family])] for family in families
        ],
    )


def _worst_table(report: LabelReport) -> Table:
    return Table(
        header=["family", "batch", "input", *_CONDITIONS, "measured, ms", "predicted, ms", "error, %"],
        rows=[
            [
                score.family,
                str(score.batch),
                score.input_size,
                *(str(getattr(score.conditions, name)) for name in _CONDITIONS),
                f"{score.latency.measured:.4g}",
                f"{score.latency.predicted:.4g}",
                f"{score.latency.error_percent:+.1f}",
            ]
            for score in report.worst
        ],
    )


def _summarize(figures: Sequence[Figure]) -> list[str]:
    """Cells under :data:`_HEADER`."""
    errors = np.array([figure.error_percent for figure in figures])
    covered = [figure.is_covered for figure in figures if figure.is_covered is not None]
    return [
        str(len(figures)),
        f"{np.abs(errors).mean():.1f}",
        f"{np.median(np.abs(errors)):.1f}",
        f"{np.median(errors):+.1f}",
        f"{100 * np.mean(covered):.0f}" if covered else _UNKNOWN,
    ]


def _distance(score: LabelScore) -> float:
    """Half the time is as far off as twice the time."""
    return float(abs(np.log(score.latency.predicted / score.latency.measured)))


def _figure(measured: float | None, predicted: float | None, interval: Sequence[float] | None) -> Figure | None:
    # A counter that did not tick says 0: it is no measurement.
    if not measured or predicted is None:
        return None
    low, high = (None, None) if interval is None else interval
    return Figure(measured=measured, predicted=predicted, low=low, high=high)


def _input_size(recipe: Recipe) -> str:
    named = recipe.inputs.named
    entries = recipe.inputs.positional if named is None else tuple(named.values())
    return ", ".join("x".join(str(size) for size in entry.shape) for entry in entries)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the report."""
    parser = argparse.ArgumentParser(description="The shipped predictor beside the labels of one GPU.")
    parser.add_argument("--labels", type=Path, required=True, help="Parquet file of labels of one GPU")
    parser.add_argument("--cache", type=Path, required=True, help="folder of graphs, see dippm.datasets.graph_cache")
    parser.add_argument("--report", type=Path, required=True, help="Markdown file to write")
    parser.add_argument("--jobs", type=int, default=1, help="processes that build missing graphs at the same time")
    options = parser.parse_args(arguments)
    labels = choose_labels(read_parquet(options.labels))
    report = evaluate_labels(labels, GraphCache(options.cache), jobs=options.jobs)
    if not report.scores:
        raise UsageError(f"No label could be predicted. {' '.join(report.left_out[:1])}", code="labels.none")
    command = (
        f"python -m dippm.evaluation.own_labels --labels {options.labels} --cache {options.cache} "
        f"--report {options.report}"
    )
    text = render_markdown(
        f"Predictions beside labels of {labels[0].measurement.device}", sections_of(report, command=command), {}
    )
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(report.scores)} labels predicted, {len(report.left_out)} left out: {options.report}\n")


if __name__ == "__main__":
    main()
