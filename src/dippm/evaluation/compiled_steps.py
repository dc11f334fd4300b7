"""What compiling a training step saves of time and memory, predicted and published.

    python -m dippm.evaluation.compiled_steps --report docs/reports/compiled_steps.md

No rate was fitted on the published steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dippm.costs.conditions import Conditions, Mode, Optimizer, Runtime
from dippm.costs.live_tensors import live_memory
from dippm.costs.precision import Precision
from dippm.costs.software import Software
from dippm.datasets.published_pairs import MemoryPair, StepPair, read_memory_pairs, read_step_pairs
from dippm.devices import find_device
from dippm.evaluation.published_runs import PUBLISHED_FOLDER
from dippm.evaluation.report_page import Section, Table, render_markdown
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.graph import DType, Graph
from dippm.graph.passes.unfuse_attention import unfuse_attention
from dippm.predictors.physics import PhysicsPredictor
from dippm.predictors.prepared_graph import CompiledGraphs
from dippm.units import BYTES_PER_MIB

__all__ = [
    "MemoryScore",
    "StepScore",
    "build_step_graph",
    "gain_errors",
    "main",
    "memory_section",
    "score_memory_pairs",
    "score_step_pairs",
    "sections_of",
]

_DEVICE = "A100-SXM4-40GB"
# Nightly builds between the releases 1.13 and 2.1.
_SOFTWARE = Software(torch=(2, 0))
_TOKENS, _DECODER_TOKENS = "input_ids", "decoder_input_ids"
_WITH_DECODER = "ForConditionalGeneration"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepScore:
    """A pair of published steps and what is predicted of them.

    Args:
        pair: The published pair.
        eager_ms: Predicted time of the eager step, ms.
        compiled_ms: Predicted time of the compiled one, ms.
        interval_ms: Ends of its interval.
    """

    pair: StepPair
    eager_ms: float
    compiled_ms: float
    interval_ms: tuple[float, float]

    @property
    def gain(self) -> float:
        """By what factor compiling is said to make the step faster."""
        return self.eager_ms / self.compiled_ms

    @property
    def is_covered(self) -> bool:
        """Whether the interval holds the compiled step."""
        return self.interval_ms[0] <= self.pair.compiled_ms <= self.interval_ms[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryScore:
    """A published ratio of two peaks and what is predicted of them.

    Args:
        pair: The published ratio.
        eager_mb: Most that tensors take in the eager step, MiB.
        compiled_mb: The same of the compiled one.
    """

    pair: MemoryPair
    eager_mb: float
    compiled_mb: float

    @property
    def error_percent(self) -> float:
        """By what the compiled peak would be off, were the eager one right, %."""
        return 100.0 * (self.pair.ratio * self.compiled_mb / self.eager_mb - 1.0)

    @property
    def error_of_eager_percent(self) -> float:
        """The same were the eager peak taken for both, %."""
        return 100.0 * (self.pair.ratio - 1.0)


def build_step_graph(pair: StepPair | MemoryPair) -> Graph:
    """The model of a pair as it was run: with attention that it writes out, as its library did at the time.

    Raises:
        MissingExtraError: The library of the model is not installed.
    """
    from dippm.frontends import zoo
    from dippm.frontends.torch import read_module

    module, inputs = zoo.build(pair.model)
    if pair.sequence is not None:
        tokens = InputEntry(shape=(pair.sequence,), dtype=DType.INT64)
        names = [_TOKENS, _DECODER_TOKENS] if pair.model.endswith(_WITH_DECODER) else [_TOKENS]
        inputs = InputShapes(named=dict.fromkeys(names, tokens))
    return unfuse_attention(read_module(module, input=inputs, source=pair.model, mode=Mode.TRAINING))


def score_step_pairs(pairs: Sequence[StepPair], graphs: Mapping[str, Graph]) -> list[StepScore]:
    """Predict both steps of each pair.

    Args:
        pairs: The pairs.
        graphs: The graph of each model.
    """
    predictor, scores = PhysicsPredictor.load(), []
    for pair in pairs:
        eager, compiled = (
            predictor.predict(
                graphs[pair.model],
                batches=[pair.batch],
                devices=[find_device(_DEVICE)],
                conditions=Conditions(
                    precision=pair.precision, mode=Mode.TRAINING, optimizer=Optimizer.NONE, runtime=runtime
                ),
                software=_SOFTWARE,
            )[0]
            for runtime in (Runtime.EAGER, Runtime.COMPILE)
        )
        low, high = compiled.intervals["latency_ms"]
        scores.append(
            StepScore(pair=pair, eager_ms=eager.latency_ms, compiled_ms=compiled.latency_ms, interval_ms=(low, high))
        )
    return scores


def score_memory_pairs(pairs: Sequence[MemoryPair], graphs: Mapping[str, Graph]) -> list[MemoryScore]:
    """Replay both steps of each pair.

    Args:
        pairs: The pairs.
        graphs: The graph of each model.
    """
    scores = []
    for pair in pairs:
        peaks = []
        for runtime in (Runtime.EAGER, Runtime.COMPILE):
            conditions = Conditions(
                precision=pair.precision, mode=Mode.TRAINING, optimizer=Optimizer.NONE, runtime=runtime
            )
            (member,) = CompiledGraphs.of([graphs[pair.model]], conditions, _SOFTWARE).members
            peaks.append(float(live_memory(member.timeline, [pair.batch]).peak_bytes[0]) / BYTES_PER_MIB)
        scores.append(MemoryScore(pair=pair, eager_mb=peaks[0], compiled_mb=peaks[1]))
    return scores


def gain_errors(scores: Sequence[StepScore]) -> list[float]:
    """By what predicted gains are off, %."""
    return [100.0 * (score.gain / score.pair.gain - 1.0) for score in scores]


def sections_of(scores: Sequence[StepScore]) -> list[Section]:
    """The report."""
    parts = {
        "all": list(scores),
        **{
            f"{what}, {precision.value}": [
                score
                for score in scores
                if score.pair.precision is precision and (score.pair.sequence is None) == is_image
            ]
            for what, is_image in (("images", True), ("text", False))
            for precision in (Precision.TF32, Precision.AMP)
        },
    }
    return [
        Section(
            title="By what factor compiling makes a step faster",
            text=[
                "Forward and backward pass on an A100, eager and compiled by inductor without CUDA graphs, as "
                "PyTorch's developers have timed them before release 2.1. A gain is eager over compiled time; what is "
                "predicted of it is what the rules of fusion say, since no table of compiled steps was published. The "
                "steps are the slowest ones of each of their tables, so that nothing was chosen by how much compiling "
                "saves. No rate was fitted on them. Rules of fusion changed once after they had been compared, for the "
                "memory below, which made the mean error 0.3 points smaller. That the compiled step takes over "
                "the networks' correction of the eager step in two parts, of matrix products and of all else, was "
                "settled with them in view and with GPT-2 on 20 cards ([published measurements](published.md)): "
                "compiled, GPT-2 is met within 9.4 % and was within 19.5 with one factor for all. Gains here were "
                "11.3 % off then, less than now; were convolutions a part of the products, they would be 15.0 % off.",
                "Eight of the models stand in two of these tables, a month apart: their compiled times differ by 7 %. "
                "DeBERTa's graph breaks where Python decides, so that little of it is compiled; it is not left out.",
                "The image models' level is too low in amp, of eager and compiled steps alike. Why is not known: the "
                "benchmark may have let cuDNN choose its kernels without trying them.",
            ],
            tables=[
                Table(
                    header=["steps", "number", "mean error of the gain, %", "bias, %", "time in interval, %",
                            "compiled time, bias, %"],
                    rows=[_summary(name, chosen) for name, chosen in parts.items() if chosen],
                )
            ],
        ),
        Section(
            title="Each of them",
            tables=[
                Table(
                    header=["model", "precision", "batch", "eager, ms", "compiled, ms", "gain", "predicted eager, ms",
                            "predicted compiled, ms", "predicted gain", "source"],
                    rows=[_row(score) for score in scores],
                )
            ],
        ),
    ]  # fmt: skip


def memory_section(scores: Sequence[MemoryScore]) -> Section:
    """The part of the report on memory."""
    errors, of_eager = (
        np.array(values)
        for values in zip(*((score.error_percent, score.error_of_eager_percent) for score in scores), strict=True)
    )
    return Section(
        title="By what factor compiling makes the peak of the memory smaller",
        text=[
            "Most bytes that tensors took in the eager step over those of the compiled one, by the same dashboards. "
            "Of the models that could be built as they were: those of language models whose class's default "
            "configuration is no other today, and two image models. The upper ends of the tables were read, which "
            "are sorted by the ratio, so that savings are larger here than on average.",
            "The rules are those of the releases (what is kept for the backward pass, where buffers are used again, "
            "how the loss is differentiated). These rows decided between readings of them: that a softmax is kept and "
            "not made again, that a layer norm is made again and a batch norm is not.",
            f"Were the eager step's peak right, the compiled one's would be {np.abs(errors).mean():.1f} % off on "
            f"average (bias {errors.mean():+.1f} %, {np.abs(errors).max():.1f} % at most); taken for both, it is "
            f"{np.abs(of_eager).mean():.1f} % off.",
        ],
        tables=[
            Table(
                header=["model", "precision", "batch", "ratio", "predicted ratio", "error, %", "source"],
                rows=[
                    [
                        score.pair.model,
                        score.pair.precision.value,
                        str(score.pair.batch),
                        f"{score.pair.ratio:.2f}",
                        f"{score.eager_mb / score.compiled_mb:.2f}",
                        f"{score.error_percent:+.1f}",
                        score.pair.source,
                    ]
                    for score in scores
                ],
            )
        ],
    )


def _summary(name: str, scores: Sequence[StepScore]) -> list[str]:
    errors = np.array(gain_errors(scores))
    level = np.array([score.compiled_ms / score.pair.compiled_ms - 1.0 for score in scores])
    covered = np.mean([score.is_covered for score in scores])
    return [
        name,
        str(len(scores)),
        f"{np.abs(errors).mean():.1f}",
        f"{errors.mean():+.1f}",
        f"{100 * covered:.0f}",
        f"{100 * level.mean():+.0f}",
    ]


def _row(score: StepScore) -> list[str]:
    pair = score.pair
    return [
        pair.model,
        pair.precision.value,
        str(pair.batch),
        f"{pair.eager_ms:.0f}",
        f"{pair.compiled_ms:.0f}",
        f"{pair.gain:.2f}",
        f"{score.eager_ms:.0f}",
        f"{score.compiled_ms:.0f}",
        f"{score.gain:.2f}",
        pair.source,
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the report."""
    parser = argparse.ArgumentParser(description="What compiling a training step saves.")
    parser.add_argument("--published", type=Path, default=PUBLISHED_FOLDER)
    parser.add_argument("--report", type=Path, default=Path("docs/reports/compiled_steps.md"))
    options = parser.parse_args(arguments)
    pairs, peaks = read_step_pairs(options.published), read_memory_pairs(options.published)
    graphs: dict[str, Graph] = {}
    asked: list[StepPair | MemoryPair] = [*pairs, *peaks]
    for pair in asked:
        if pair.model not in graphs:
            graphs[pair.model] = build_step_graph(pair)
    sections = [*sections_of(score_step_pairs(pairs, graphs)), memory_section(score_memory_pairs(peaks, graphs))]
    text = render_markdown("Compiled training steps", sections, {})
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
