"""The shipped predictor on NVIDIA's DeepLearningExamples: segmentation, detection, speech, ratings and language.

``python -m dippm.evaluation.deep_learning_examples --report docs/reports/deep_learning_examples.md`` writes the report.

Their networks are unlike the image classifiers and transformers of the other tables, and no rate is fitted on the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dippm.costs.conditions import Mode
from dippm.datasets.published import PublishedRow
from dippm.evaluation.published import PublishedScore, run_comparison, score_runs
from dippm.evaluation.published_runs import PUBLISHED_FOLDER, PublishedRun, read_example_runs
from dippm.evaluation.report_page import Section, Table, describe_left_out, render_markdown
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.graph import DType, Graph
from dippm.predictors.physics import PhysicsPredictor

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ExamplesReport", "build_network", "evaluate_examples", "main", "read_example", "sections_of"]

_TITLE = "NVIDIA's DeepLearningExamples"
_FAR = 1.5
_FEATURES = 64  # of a frame
# Layers and width.
_SIZES = {"dle:transformer-xl-base": (16, 512), "dle:transformer-xl-large": (18, 1024)}


@dataclass(frozen=True, kw_only=True, slots=True)
class ExamplesReport:
    """All rows.

    Args:
        scores: Those that were predicted.
        left_out: Why the others were not, and how many.
    """

    scores: tuple[PublishedScore, ...]
    left_out: Counter[str]


def build_network(row: PublishedRow) -> tuple[nn.Module, InputShapes]:
    """The network of a row, without memory for its weights, and what one sample of its input is.

    Args:
        row: A row of ``deep_learning_examples.csv``.
    """
    import torch

    from dippm.evaluation.example_networks import (
        JASPER,
        QUARTZNET,
        AcousticModel,
        NeuMf,
        Ssd300,
        TransformerXl,
        UNet,
    )

    def positional(*entries: InputEntry) -> InputShapes:
        return InputShapes(positional=entries)

    with torch.device("meta"):
        if row.model == "dle:nnunet-2d":
            return UNet(2), positional(InputEntry(shape=(4, *(row.image or ()))))
        if row.model == "dle:nnunet-3d":
            return UNet(3), positional(InputEntry(shape=(4, 128, 128, 128)))
        if row.model == "dle:ssd300":
            return Ssd300(), positional(InputEntry(shape=(3, *(row.image or ()))))
        if row.model in ("dle:jasper", "dle:quartznet"):
            is_dense = row.model == "dle:jasper"
            features = InputEntry(shape=(_FEATURES, row.sequence or 0))
            network = AcousticModel(JASPER if is_dense else QUARTZNET, is_dense=is_dense)
            return network, positional(features, InputEntry(shape=(), dtype=DType.INT64))
        if row.model == "dle:ncf":
            number = InputEntry(shape=(), dtype=DType.INT64)
            return NeuMf(has_sigmoid=row.mode != Mode.TRAINING.value), positional(number, number)
        layers, width = _SIZES[row.model]
        words = InputEntry(shape=(row.sequence or 0,), dtype=DType.INT64, batch_axis=1)
        memory = InputEntry(shape=(layers, row.past_tokens or 0, width), batch_axis=2)
        is_projected = row.model.endswith("large")
        return TransformerXl(layers, width, is_projected=is_projected), positional(words, words, memory)


def read_example(run: PublishedRun) -> Graph:
    """The graph of a row's network."""
    from dippm.frontends.torch import read_module

    network, inputs = build_network(run.row)
    return read_module(network, input=inputs, source=run.row.model, mode=run.conditions.mode)


def evaluate_examples(folder: Path = PUBLISHED_FOLDER) -> ExamplesReport:
    """Predict every row of the table.

    Args:
        folder: ``data/published`` of the repository.

    Raises:
        UsageError: ``data.missing``.
    """
    runs, left_out = read_example_runs(folder)
    graphs: dict[tuple[object, ...], Graph] = {}
    for run in runs:
        if run.graph_key not in graphs:
            graphs[run.graph_key] = read_example(run)
    return ExamplesReport(scores=tuple(score_runs(runs, graphs, PhysicsPredictor.load())), left_out=left_out)


def sections_of(report: ExamplesReport) -> list[Section]:
    """The report's sections."""
    scores = report.scores
    return [
        Section(
            title="What was compared",
            text=(
                "Times that NVIDIA has published of networks for segmentation, detection, speech, ratings and "
                "language, beside the shipped predictor. Written by `python -m "
                "dippm.evaluation.deep_learning_examples --report docs/reports/deep_learning_examples.md`; where the "
                "rows come from, how the networks were written anew and what is doubtful about each stands in "
                "[data/published](../../data/published/README.md#deep_learning_examplescsv).",
                "Nothing is fitted on these rows, but where the corrections of networks fade was chosen with those in "
                "amp in view. `cudnn.benchmark` was on for all convolutions, so that the fastest "
                "kernel was taken of each; a prediction is of PyTorch's default, which does not look for it.",
            ),
        ),
        Section(title="By model", tables=(_table("model", scores, lambda score: score.run.row.model),)),
        Section(title="By device", tables=(_table("device", scores, lambda score: score.run.device.name),)),
        Section(
            title="By precision",
            tables=(
                _table(
                    "conditions",
                    scores,
                    lambda score: f"{score.run.conditions.mode.value}, {score.run.conditions.precision.value}",
                ),
            ),
        ),
        describe_left_out(report.left_out),
        Section(title="All rows", tables=(_all_rows(scores),)),
    ]


def _table(name: str, scores: Sequence[PublishedScore], key: Callable[[PublishedScore], str]) -> Table:
    groups: dict[str, list[PublishedScore]] = {}
    for score in sorted(scores, key=key):
        groups.setdefault(key(score), []).append(score)
    header = (name, "rows", "mean error, %", "median", "bias", "beyond a factor of 1.5, %", "in interval, %")
    return Table(header=header, rows=[(label, *_errors(own)) for label, own in {**groups, "all": scores}.items()])


def _errors(scores: Sequence[PublishedScore]) -> tuple[str, ...]:
    errors = np.array([score.error_percent for score in scores])
    sizes, ratios = np.abs(errors), 1.0 + errors / 100.0
    is_far = np.maximum(ratios, 1.0 / ratios) > _FAR
    covered = np.mean([score.is_covered for score in scores])
    return (
        str(len(scores)), f"{sizes.mean():.1f}", f"{np.median(sizes):.1f}", f"{np.median(errors):+.1f}",
        f"{100.0 * is_far.mean():.0f}", f"{100.0 * covered:.0f}",
    )  # fmt: skip


def _all_rows(scores: Sequence[PublishedScore]) -> Table:
    header = (
        "model", "device", "how", "batch", "frames or tokens", "measured, ms", "predicted, ms", "error, %",
        "in interval",
    )  # fmt: skip
    return Table(
        header=header,
        rows=[
            (
                score.run.row.model, score.run.device.name,
                f"{score.run.conditions.mode.value}, {score.run.conditions.precision.value}",
                str(score.run.row.batch), str(score.run.row.sequence or ""), f"{score.run.row.latency_ms:.4g}",
                f"{score.prediction.latency_ms:.4g}", f"{score.error_percent:+.1f}",
                "yes" if score.is_covered else "no",
            )
            for score in scores
        ],
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: predict all rows, print the report or write it."""
    run_comparison(
        arguments,
        description="Compare the shipped predictor with NVIDIA's DeepLearningExamples.",
        make_page=lambda folder: render_markdown(_TITLE, sections_of(evaluate_examples(folder)), {}),
    )


if __name__ == "__main__":
    main()
