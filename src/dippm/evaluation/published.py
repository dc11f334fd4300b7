"""The shipped predictor on what others have published: times and memory of whole models on many devices.

``python -m dippm.evaluation.published --report docs/reports/published.md`` writes the report.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dippm.datasets.published import read_configurations, read_held_out_configurations
from dippm.evaluation.published_power import PowerScore, render_held_out_power, render_power, score_power
from dippm.evaluation.published_runs import (
    FITTED_MODELS,
    PUBLISHED_FOLDER,
    PublishedRun,
    read_held_out_power_runs,
    read_power_runs,
    read_published_runs,
)
from dippm.frontends.torch.torchvision_ops import import_torchvision_ops
from dippm.graph import Graph
from dippm.predictors.physics import PhysicsPredictor
from dippm.predictors.prediction import Prediction

__all__ = [
    "PublishedReport",
    "PublishedScore",
    "evaluate_published",
    "main",
    "read_graphs",
    "render_markdown",
    "run_comparison",
    "score_runs",
]

_TITLE = "# Published measurements"


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedScore:
    """One row, measured and predicted.

    Args:
        run: The row and its question.
        prediction: The answer.
    """

    run: PublishedRun
    prediction: Prediction

    @property
    def error_percent(self) -> float:
        """Signed error of the time, %."""
        return 100.0 * (self.prediction.latency_ms / (self.run.row.latency_ms or np.nan) - 1.0)

    @property
    def is_covered(self) -> bool:
        """Whether the interval holds the measured time."""
        low, high = self.prediction.intervals["latency_ms"]
        return low <= (self.run.row.latency_ms or np.nan) <= high

    @property
    def allocated_mb(self) -> float:
        """Predicted peak of what PyTorch's allocator has handed out, MiB."""
        parts = self.prediction.memory_parts_mb
        return sum(value for name, value in parts.items() if name not in ("context", "slack"))

    @property
    def memory_error_percent(self) -> float | None:
        """Signed error of the allocated peak, %; None where none was published that can be compared."""
        measured = self.run.row.allocated_mb if self.run.has_comparable_memory else None
        return None if measured is None else 100.0 * (self.allocated_mb / measured - 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedReport:
    """All rows.

    Args:
        scores: Those that were predicted.
        left_out: Why the others were not, and how many.
        power: Those that state energy.
        held_out_power: Those that state energy and that nothing is fitted on.
    """

    scores: tuple[PublishedScore, ...]
    left_out: Counter[str]
    power: tuple[PowerScore, ...] = ()
    held_out_power: tuple[PowerScore, ...] = ()


def read_graphs(
    runs: Sequence[PublishedRun], folder: Path, *, is_held_out: bool = False
) -> dict[tuple[object, ...], Graph]:
    """The graph of every run, by its key; each is read once.

    Args:
        runs: The rows and their questions.
        folder: ``data/published`` of the repository.
        is_held_out: Whether they are those of :func:`read_held_out_power_runs`.

    Raises:
        UsageError: ``data.missing``.
    """
    import_torchvision_ops()
    configurations = read_held_out_configurations(folder) if is_held_out else read_configurations(folder)
    graphs: dict[tuple[object, ...], Graph] = {}
    for run in runs:
        if run.graph_key not in graphs:
            graphs[run.graph_key] = run.build_graph(configurations)
    return graphs


def score_runs(
    runs: Sequence[PublishedRun], graphs: Mapping[tuple[object, ...], Graph], predictor: PhysicsPredictor
) -> list[PublishedScore]:
    """Predict every run.

    Args:
        runs: The rows and their questions.
        graphs: The graph of every run, by its key.
        predictor: The shipped predictor.
    """
    scores = []
    for run in runs:
        (prediction,) = predictor.predict(
            graphs[run.graph_key],
            batches=[run.row.batch],
            devices=[run.device],
            conditions=run.conditions,
            software=run.software,
        )
        scores.append(PublishedScore(run=run, prediction=prediction))
    return scores


def evaluate_published(folder: Path = PUBLISHED_FOLDER) -> PublishedReport:
    """Predict every published row that a question describes.

    Raises:
        UsageError: ``data.missing``.
    """
    runs, left_out = read_published_runs(folder)
    power_runs, _ = read_power_runs(folder)
    held_out_runs, _ = read_held_out_power_runs(folder)
    graphs, predictor = read_graphs([*runs, *power_runs], folder), PhysicsPredictor.load()
    return PublishedReport(
        scores=tuple(score_runs(runs, graphs, predictor)),
        left_out=left_out,
        power=score_power(power_runs, graphs, predictor),
        held_out_power=score_power(held_out_runs, read_graphs(held_out_runs, folder, is_held_out=True), predictor),
    )


def render_markdown(report: PublishedReport) -> str:
    """The report as a page."""
    scores = report.scores
    parts: tuple[tuple[str, Callable[[PublishedScore], str]], ...] = (
        ("table", lambda score: f"{score.run.row.source}, {score.run.row.mode}"),
        ("device", lambda score: score.run.device.name),
        ("conditions", lambda score: _conditions(score, score.run.conditions.mode.value)),
    )
    lines = [
        _TITLE,
        "",
        "Times and memory of whole models as others have published them, beside the shipped predictor. Written by "
        "`python -m dippm.evaluation.published --report docs/reports/published.md`; the tables, where they come from "
        "and what is doubtful about each stand in [data/published](../../data/published/README.md).",
        "",
        f"Models whose name holds {', '.join(f'`{name}`' for name in FITTED_MODELS)} were fitted on, for how fast "
        "hosts are and how much of their peak full-rate tensor cores reach "
        "(`python -m dippm.training.published_rates`). All other models are held out from that fit, and the "
        "networks, which answer in amp, were fitted on none of it. The form of the laws behind these rates, what a "
        "board's power allows its tensor cores, and how long compiled code takes to launch, were settled with all rows "
        "in view, and that matrix products of compiled steps have a correction of their own with those of GPT-2: "
        "the errors below are no test of those on cards that are not among these. The laptop's card has "
        "clocks and a power limit of its own.",
        "",
        "## Held out and fitted",
        "",
        *_table("rows", [("held out", [s for s in scores if not s.run.is_fitted]),
                         ("fitted", [s for s in scores if s.run.is_fitted])]),
    ]  # fmt: skip
    for name, key in parts:
        groups: dict[str, list[PublishedScore]] = {}
        for score in scores:
            groups.setdefault(f"{key(score)}{'' if not score.run.is_fitted else ' (fitted)'}", []).append(score)
        lines += ["", f"## By {name}", "", *_table(name, sorted(groups.items()))]
    lines += [
        *render_power(report.power),
        *render_held_out_power(report.held_out_power),
        "",
        "## Left out",
        "",
        "| reason | rows |",
        "|---|---:|",
        *(f"| {reason} | {count} |" for reason, count in sorted(report.left_out.items())),
        "",
        "## All rows",
        "",
        "| table | model | device | how | batch | tokens | measured, ms | predicted, ms | error, % | in interval "
        "| allocated, MiB | predicted, MiB | error, % |",
        "|---|---|---|---|---:|---:|---:|---:|---:|---|---:|---:|---:|",
        *(_row(score) for score in scores),
    ]
    return "\n".join(lines) + "\n"


def _table(name: str, groups: Sequence[tuple[str, Sequence[PublishedScore]]]) -> list[str]:
    lines = [
        f"| {name} | rows | mean error of the time, % | median | bias | in interval, % | rows with memory "
        "| mean error of the allocated peak, % | bias |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for label, scores in groups:
        if not scores:
            continue
        errors = np.array([score.error_percent for score in scores])
        covered = 100.0 * np.mean([score.is_covered for score in scores])
        sizes = np.abs(errors)
        of_time = f"{sizes.mean():.1f} | {np.median(sizes):.1f} | {np.median(errors):+.1f} | {covered:.0f}"
        memory = np.array([e for score in scores if (e := score.memory_error_percent) is not None])
        of_memory = f"{np.abs(memory).mean():.1f} | {np.median(memory):+.1f}" if len(memory) else "- | -"
        lines.append(f"| {label} | {len(errors)} | {of_time} | {len(memory)} | {of_memory} |")
    return lines


def _conditions(score: PublishedScore, mode: str) -> str:
    conditions = score.run.conditions
    return f"{mode}, {conditions.precision.value}, {conditions.runtime.value}"


def _row(score: PublishedScore) -> str:
    row = score.run.row
    tokens = row.past_tokens if row.mode == "decode" else row.sequence
    memory = score.memory_error_percent
    of_memory = (
        "| | | |" if memory is None else f"| {row.allocated_mb:.0f} | {score.allocated_mb:.0f} | {memory:+.1f} |"
    )
    return (
        f"| {row.source} | {row.model} | {score.run.device.name} "
        f"| {_conditions(score, row.mode)}{row.attention and f', {row.attention} attention'} | {row.batch} "
        f"| {tokens or ''} | {row.latency_ms:.4g} | {score.prediction.latency_ms:.4g} | {score.error_percent:+.1f} "
        f"| {'yes' if score.is_covered else 'no'} {of_memory}"
    )


def run_comparison(arguments: Sequence[str] | None, *, description: str, make_page: Callable[[Path], str]) -> None:
    """Command line of a comparison with published rows: print its page, or write it.

    Args:
        arguments: The command line's words; those of the process where None are given.
        description: What is compared.
        make_page: Makes the page of a folder like ``data/published``.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--folder", type=Path, default=PUBLISHED_FOLDER)
    parser.add_argument("--report", type=Path, help="where the report goes; printed when left out")
    options = parser.parse_args(arguments)
    page = make_page(options.folder)
    if options.report is None:
        sys.stdout.write(page)
    else:
        options.report.write_text(page, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: predict all rows, print the report or write it."""
    run_comparison(
        arguments,
        description="Compare the shipped predictor with published measurements.",
        make_page=lambda folder: render_markdown(evaluate_published(folder)),
    )


if __name__ == "__main__":
    main()
