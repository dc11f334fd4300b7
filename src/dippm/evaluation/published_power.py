"""Power and energy of the shipped predictor beside what others have published: a section of the published report.

Power is compared twice: as predicted, and with the measured time in place of the predicted one, where only the power
model and the part of the time in which a kernel runs can be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dippm.costs.conditions import Mode
from dippm.evaluation.published_runs import PublishedRun
from dippm.graph import Graph
from dippm.predictors.calibration import TRAINING_ARTEFACT_PATH, Calibration
from dippm.predictors.physics import PhysicsPredictor
from dippm.predictors.prediction import Prediction

__all__ = ["PowerScore", "render_held_out_power", "render_power", "score_power"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerScore:
    """One row with energy, measured and predicted.

    Args:
        run: The row and its question.
        prediction: The answer.
        timed_w: Power by the model where the call takes as long as it was measured to take, W.
    """

    run: PublishedRun
    prediction: Prediction
    timed_w: float

    @property
    def measured_w(self) -> float:
        """Mean power of the board, measured, W."""
        return 1e3 * (self.run.row.energy_j or np.nan) / (self.run.row.latency_ms or np.nan)

    @property
    def predicted_w(self) -> float:
        """The same, predicted, W."""
        return 1e3 * self._predicted_j / self.prediction.latency_ms

    @property
    def power_error_percent(self) -> float:
        """Signed error of the predicted power, %."""
        return 100.0 * (self.predicted_w / self.measured_w - 1.0)

    @property
    def timed_error_percent(self) -> float:
        """Signed error of the power at the measured time, %."""
        return 100.0 * (self.timed_w / self.measured_w - 1.0)

    @property
    def energy_error_percent(self) -> float:
        """Signed error of the energy, %."""
        return 100.0 * (self._predicted_j / (self.run.row.energy_j or np.nan) - 1.0)

    @property
    def _predicted_j(self) -> float:
        return self.prediction.energy_j or np.nan

    @property
    def is_covered(self) -> bool:
        """Whether the interval holds the measured energy."""
        low, high = self.prediction.intervals["energy_j"]
        return low <= (self.run.row.energy_j or np.nan) <= high


def score_power(
    runs: Sequence[PublishedRun], graphs: Mapping[tuple[object, ...], Graph], predictor: PhysicsPredictor
) -> tuple[PowerScore, ...]:
    """Predict the energy of every run.

    Args:
        runs: Rows that state energy.
        graphs: The graph of every run, by its key.
        predictor: The shipped predictor.
    """
    models = {Mode.INFERENCE: Calibration.read().power, Mode.TRAINING: Calibration.read(TRAINING_ARTEFACT_PATH).power}
    scores = []
    for run in runs:
        row, graph, conditions = run.row, graphs[run.graph_key], run.conditions
        (prediction,) = predictor.predict(
            graph, batches=[row.batch], devices=[run.device], conditions=conditions, software=run.software
        )
        load = predictor.load_of(
            graph, batch=row.batch, device=run.device, conditions=conditions, software=run.software
        )
        timed = load.power_w(models[conditions.mode], run.device, np.array([row.latency_ms]))
        scores.append(PowerScore(run=run, prediction=prediction, timed_w=float(timed[0])))
    return tuple(scores)


def render_power(scores: Sequence[PowerScore]) -> list[str]:
    """The section of the page, line by line; empty without rows."""
    if not scores:
        return []
    held: Mapping[str, object] = Calibration.read().provenance
    fit = held.get("published_power", {})
    return [
        "",
        "## Power and energy",
        "",
        "Mean power of the board over a call, as a share of its limit. The power model was fitted on these rows, on "
        "training runs of four other boards and on labels of our own of an H100 and an H200 "
        "(`python -m dippm.training.published_power`), each board alike; times were not. At the measured time, the "
        "published time stands in place of the predicted one: what is left is the power model's own error.",
        "",
        *_table(scores),
        *(_left_out(fit) if isinstance(fit, Mapping) and "processes_left_out" in fit else []),
    ]


def render_held_out_power(scores: Sequence[PowerScore]) -> list[str]:
    """The section on boards that the power model has never seen, line by line; empty without rows."""
    if not scores:
        return []
    return [
        "",
        "## Power of boards that nothing was fitted on",
        "",
        "The same of `power_held_out.csv`, which no fit takes. The rows of `power-limit-rtx3090` tell of the limit "
        "alone: their power is the limit that was set, and they show whether the model says that the board is at it.",
        "",
        *_table(scores),
    ]


def _table(scores: Sequence[PowerScore]) -> list[str]:
    groups: dict[str, list[PowerScore]] = {}
    for score in scores:
        groups.setdefault(f"{score.run.row.source}, {score.run.device.name}", []).append(score)
    return [
        "| table, device | rows | measured, share of the limit | mean error of the power, % | bias "
        "| mean error at the measured time, % | bias | mean error of the energy, % | bias | in interval, % |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|",
        *(_row(label, own) for label, own in sorted(groups.items())),
    ]


def _row(label: str, scores: Sequence[PowerScore]) -> str:
    shares = [score.measured_w / score.run.device.board_power_w for score in scores]
    kinds = (
        [score.power_error_percent for score in scores],
        [score.timed_error_percent for score in scores],
        [score.energy_error_percent for score in scores],
    )
    errors = " | ".join(f"{np.abs(kind).mean():.1f} | {np.median(kind):+.1f}" for kind in kinds)
    covered = 100.0 * np.mean([score.is_covered for score in scores])
    return f"| {label} | {len(scores)} | {min(shares):.2f} to {max(shares):.2f} | {errors} | {covered:.0f} |"


def _left_out(fit: Mapping[str, object]) -> list[str]:
    boards, processes = fit["boards_left_out"], fit["processes_left_out"]
    lines = [
        "",
        "Each board as it is met by a fit that has not seen it, at the measured time:",
        "",
        "| board | rows | mean error, % | bias | nine in ten within, % |",
        "|---|---:|---:|---:|---:|",
    ]
    if isinstance(boards, Mapping):
        lines += [f"| {name} | {_errors(own)} |" for name, own in boards.items()]
    lines += [
        "",
        "Some of these boards are forms of one chip, or chips of one process, and help each other. All boards of a "
        "process as they are met by a fit that has seen none of them; the process that is met worst gives the interval "
        "of the power, but for an H100 and an H200 at inference, which have one of their own:",
        "",
        "| process | boards | rows | mean error, % | bias | nine in ten within, % |",
        "|---|---|---:|---:|---:|---:|",
    ]
    if isinstance(processes, Mapping):
        lines += [f"| {name} | {', '.join(own['boards'])} | {_errors(own)} |" for name, own in processes.items()]
    return lines


def _errors(own: Mapping[str, float]) -> str:
    return f"{own['rows']} | {own['mean_percent']:.1f} | {own['bias_percent']:+.1f} | {own['nine_in_ten_percent']:.0f}"
