"""The shipped predictor on published measurements of MIG slices: time, memory, and the ratio to the largest slice.

``python -m dippm.evaluation.mig_slices --report docs/reports/mig_slices.md`` writes the report.

No rate is fitted on these rows. A slice's time holds two errors: that of the predictor on the card, and that of how a
slice follows from its card. The ratio of a slice's time to that of the same call on 7g tells of the second alone, as
long as the device and not the host binds both calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dippm.costs.latency import OTHER_HOST
from dippm.evaluation.published import PublishedScore, read_graphs, run_comparison, score_runs
from dippm.evaluation.published_runs import PUBLISHED_FOLDER, PublishedRun, read_mig_slice_runs
from dippm.evaluation.report_page import Section, Table, describe_left_out, render_markdown
from dippm.predictors.physics import PhysicsPredictor

__all__ = ["MigReport", "SliceScore", "evaluate_slices", "main", "sections_of"]

_TITLE = "MIG slices"
_LARGEST = "7g"
# A call is bound by the device where its predicted time is so many times that of one sample on the largest slice, which
# is no less than what the host takes: half as much again, even where the host is ``OTHER_HOST`` times slower.
_ABOVE_HOST = 1.5 * OTHER_HOST


@dataclass(frozen=True, kw_only=True, slots=True)
class SliceScore:
    """One row of a slice, measured and predicted, and the same call on the largest slice.

    Args:
        score: The row and its answer.
        largest: The same of the same call on 7g; None where it was not published.
        host_ms: Predicted time of one sample on 7g, ms.
    """

    score: PublishedScore
    largest: PublishedScore | None
    host_ms: float

    @property
    def profile(self) -> str:
        """The slice by its compute slices, such as ``1g``."""
        return _profile(self.score.run)

    @property
    def case(self) -> str:
        """What was run, the batch left out."""
        run = self.score.run
        length = f", {run.row.sequence} tokens" if run.row.sequence else ""
        name = run.row.model.rpartition("/")[2].rpartition(":")[2]
        return f"{name}{length}, {run.conditions.mode.value}, {run.conditions.precision.value}"

    @property
    def is_bound_by_device(self) -> bool:
        """Whether the device is said to bind both calls, whatever the host."""
        least = _ABOVE_HOST * self.host_ms
        return self.largest is not None and min(_predicted(self.score), _predicted(self.largest)) >= least

    @property
    def ratios(self) -> tuple[float, float]:
        """Measured and predicted time of the slice, by that of 7g; NaN where 7g was not published."""
        if self.largest is None:
            return np.nan, np.nan
        return (
            _measured(self.score) / _measured(self.largest),
            _predicted(self.score) / _predicted(self.largest),
        )

    @property
    def ratio_error_percent(self) -> float:
        """Signed error of the ratio, %."""
        measured, predicted = self.ratios
        return 100.0 * (predicted / measured - 1.0)

    @property
    def memory_error_percent(self) -> float | None:
        """Signed error of the memory that is in use on the slice, %; None where it was not published."""
        used, predicted = self.score.run.row.used_mb, self.score.prediction.memory_mb
        return None if used is None or predicted is None else 100.0 * (predicted / used - 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class MigReport:
    """All rows.

    Args:
        scores: Those that were predicted.
        left_out: Why the others were not, and how many.
    """

    scores: tuple[SliceScore, ...]
    left_out: Counter[str]


def evaluate_slices(folder: Path = PUBLISHED_FOLDER) -> MigReport:
    """Predict every published row of a slice that a question describes.

    Args:
        folder: ``data/published`` of the repository.

    Raises:
        UsageError: ``data.missing``.
    """
    runs, left_out = read_mig_slice_runs(folder)
    graphs, predictor = read_graphs(runs, folder), PhysicsPredictor.load()
    scores = score_runs(runs, graphs, predictor)
    largest = {(_call(score.run), score.run.row.batch): score for score in scores if _profile(score.run) == _LARGEST}
    ones = {_call(score.run): replace(score.run, row=replace(score.run.row, batch=1)) for score in largest.values()}
    host_ms = {
        _call(score.run): score.prediction.latency_ms for score in score_runs(list(ones.values()), graphs, predictor)
    }
    return MigReport(
        scores=tuple(
            SliceScore(
                score=score,
                largest=largest.get((_call(score.run), score.run.row.batch)),
                host_ms=host_ms[_call(score.run)],
            )
            for score in scores
        ),
        left_out=left_out,
    )


def sections_of(report: MigReport) -> list[Section]:
    """The report's sections."""
    by_slice, by_case = _grouped(report.scores, lambda s: s.profile), _grouped(report.scores, lambda s: s.case)
    clean = [score for score in report.scores if score.is_bound_by_device]
    return [
        Section(
            title="What was compared",
            text=(
                "Times and memory on MIG slices of an A100 as others have published them, beside the shipped "
                "predictor. Written by `python -m dippm.evaluation.mig_slices --report docs/reports/mig_slices.md`; "
                "where the rows come from and what is doubtful about them stands in "
                "[data/published](../../data/published/README.md#migcsv).",
                "Nothing is fitted on these rows. Rates of hosts and tensor cores are fitted on rows of other tables, "
                "among them BERT and ResNet-50 on whole A100s. One slice was in use at a time, its neighbours idle.",
                "Memory is that in use on the slice, as DCGM counts it, beside all that the process is said to hold.",
            ),
        ),
        Section(title="By slice", tables=(_table("slice", {**by_slice, "all": report.scores}),)),
        Section(
            title="The ratio to the largest slice",
            text=(
                "The time of a slice by that of the same call on 7g, which tells whether a slice follows rightly from "
                "its card. Only calls that the device binds on both: both predicted times are at least "
                f"{_ABOVE_HOST:g} times that predicted for one sample on 7g, which is no less than what the host "
                f"takes: half as much again, even where the host is {OTHER_HOST:g} times slower than usual, as one of "
                "the two is. The error of the time is of the same calls.",
            ),
            tables=(_ratio_table(_grouped(clean, lambda s: s.profile)),),
        ),
        Section(
            title="The ratio case by case",
            text=(
                "Measured -> predicted, at the largest batch of these calls. SMs alone would give 7.00, 3.50 and 2.33, "
                "memory slices alone 8, 4 and 2.",
            ),
            tables=(_ratios_by_case(clean),),
        ),
        Section(title="By model", tables=(_table("model", by_case),)),
        describe_left_out(report.left_out),
        Section(title="All rows", tables=(_all_rows(report.scores),)),
    ]


def _measured(score: PublishedScore) -> float:
    return score.run.row.latency_ms or np.nan


def _predicted(score: PublishedScore) -> float:
    return score.prediction.latency_ms


def _profile(run: PublishedRun) -> str:
    return run.device.name.partition(".")[0]


def _call(run: PublishedRun) -> tuple[object, ...]:
    """Equal for runs that differ in slice and batch alone."""
    return run.row.source, run.device.parent, run.graph_key


def _grouped(scores: Sequence[SliceScore], key: Callable[[SliceScore], str]) -> dict[str, list[SliceScore]]:
    groups: dict[str, list[SliceScore]] = {}
    for score in sorted(scores, key=key):
        groups.setdefault(key(score), []).append(score)
    return groups


def _table(name: str, groups: Mapping[str, Sequence[SliceScore]]) -> Table:
    header = (
        name, "rows", "mean error of the time, %", "median", "bias", "in interval, %", "rows with memory",
        "mean error of the memory, %", "bias",
    )  # fmt: skip
    return Table(header=header, rows=[(label, *_errors(own)) for label, own in groups.items()])


def _errors(scores: Sequence[SliceScore]) -> tuple[str, ...]:
    covered = 100.0 * np.mean([score.score.is_covered for score in scores])
    memory = [error for score in scores if (error := score.memory_error_percent) is not None]
    of_memory = (f"{np.abs(memory).mean():.1f}", f"{np.median(memory):+.1f}") if memory else ("-", "-")
    times = [score.score.error_percent for score in scores]
    return (str(len(scores)), *_sizes(times), f"{covered:.0f}", str(len(memory)), *of_memory)


def _sizes(errors: Sequence[float]) -> tuple[str, str, str]:
    """Mean and median size of errors, and their middle."""
    sizes = np.abs(errors)
    return f"{sizes.mean():.1f}", f"{np.median(sizes):.1f}", f"{np.median(errors):+.1f}"


def _ratio_table(groups: Mapping[str, Sequence[SliceScore]]) -> Table:
    rows = []
    for label, own in groups.items():
        of_ratio = ("-", "-", "-") if label == _LARGEST else _sizes([score.ratio_error_percent for score in own])
        mean, _, bias = _sizes([score.score.error_percent for score in own])
        rows.append((label, str(len(own)), *of_ratio, mean, bias))
    return Table(
        header=(
            "slice", "calls", "mean error of the ratio, %", "median", "bias", "mean error of the time, %", "bias",
        ),
        rows=rows,
    )  # fmt: skip


def _ratios_by_case(scores: Sequence[SliceScore]) -> Table:
    profiles = sorted({score.profile for score in scores} - {_LARGEST})
    rows = []
    for case, own in _grouped(scores, lambda score: score.case).items():
        cells = [case]
        for profile in profiles:
            of_profile = [score for score in own if score.profile == profile]
            if not of_profile:
                cells.append("-")
                continue
            last = max(of_profile, key=lambda score: score.score.run.row.batch)
            cells.append(f"{last.ratios[0]:.2f} -> {last.ratios[1]:.2f} (batch {last.score.run.row.batch})")
        rows.append(cells)
    return Table(header=("model", *profiles), rows=rows)


def _all_rows(scores: Sequence[SliceScore]) -> Table:
    header = (
        "model", "slice", "batch", "measured, ms", "predicted, ms", "error, %", "in interval", "measured, MiB",
        "predicted, MiB", "error, %",
    )  # fmt: skip
    rows = []
    for each in scores:
        score, error = each.score, each.memory_error_percent
        memory = (
            ("", f"{score.prediction.memory_mb:.0f}", "")
            if error is None
            else (f"{score.run.row.used_mb:.0f}", f"{score.prediction.memory_mb:.0f}", f"{error:+.1f}")
        )
        rows.append(
            (
                each.case, score.run.device.name, str(score.run.row.batch), f"{_measured(score):.4g}",
                f"{_predicted(score):.4g}", f"{score.error_percent:+.1f}", "yes" if score.is_covered else "no", *memory,
            )
        )  # fmt: skip
    return Table(header=header, rows=rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: predict all rows of slices, print the report or write it."""
    run_comparison(
        arguments,
        description="Compare the shipped predictor with published times of MIG slices.",
        make_page=lambda folder: render_markdown(_TITLE, sections_of(evaluate_slices(folder)), {}),
    )


if __name__ == "__main__":
    main()
