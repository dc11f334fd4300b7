"""What compiling a training step saves, predicted and published.

    python -m dippm.evaluation.compiled_steps --report docs/reports/compiled_steps.md

No rate and no rule of fusion was fitted on the published steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dippm.costs.conditions import Conditions, Mode, Optimizer, Runtime
from dippm.costs.precision import Precision
from dippm.costs.software import Software
from dippm.datasets.published_pairs import StepPair, read_step_pairs
from dippm.devices import find_device
from dippm.evaluation.published_runs import PUBLISHED_FOLDER
from dippm.evaluation.report_page import Section, Table, render_markdown
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.graph import DType, Graph
from dippm.graph.passes.unfuse_attention import unfuse_attention
from dippm.predictors.physics import PhysicsPredictor

__all__ = ["StepScore", "build_step_graph", "gain_errors", "main", "score_step_pairs", "sections_of"]

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


def build_step_graph(pair: StepPair) -> Graph:
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
                "saves. No rate was fitted on them, and no rule of fusion changed after they had been compared. That "
                "the compiled step takes over the networks' correction of the eager step as a whole, and not that of "
                "each operator, was settled with them in view: gains in amp are off by 12 % with the latter.",
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
    pairs = read_step_pairs(options.published)
    graphs: dict[str, Graph] = {}
    for pair in pairs:
        if pair.model not in graphs:
            graphs[pair.model] = build_step_graph(pair)
    text = render_markdown("Compiled training steps", sections_of(score_step_pairs(pairs, graphs)), {})
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
