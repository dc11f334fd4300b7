"""What the protocol of the DNNPerf paper comes to on one data set: plain figures, ready for JSON and for a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dippm.evaluation.dippm_report import DatasetSummary

__all__ = ["OVERALL", "ComparedStep", "DnnperfReport", "DnnperfSettings", "ErrorPair", "StepScore", "UnseenScore"]

OVERALL = "overall"
"""Name of the group of all test rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DnnperfSettings:
    """What the protocol trains.

    Args:
        epochs: Epochs of every network at most; validation decides which epoch is taken.
        seed: First seed.
        seeds: Seeds of comparison and ablation, at least 1; one split and one training of each for each.
        family_groups: In how many groups all families are left out in turn; 0 for none.
    """

    epochs: int = 30
    seed: int = 0
    seeds: int = 1
    family_groups: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorPair:
    """The paper's two errors.

    Args:
        mre_percent: Mean relative error, %.
        rmse: Root of the mean squared error, in the metric's unit.
    """

    mre_percent: float
    rmse: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepScore:
    """Errors of one training.

    Args:
        model: One of :data:`dippm.models.dnnperf_registry.DNNPERF_MODELS`.
        seed: Seed of split and training.
        rows: Part to its rows.
        fitted_percent: Metric to mean relative error on the training and on the validation part, %.
        test: Group of test rows (:data:`OVERALL`, and each collection where there are several) to metric to errors.
        group_rows: Group to its rows.
    """

    model: str
    seed: int
    rows: Mapping[str, int]
    fitted_percent: Mapping[str, Mapping[str, float]]
    test: Mapping[str, Mapping[str, ErrorPair]]
    group_rows: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class UnseenScore:
    """Errors on models that training has nothing of.

    Args:
        name: The architecture, or the family.
        rows: Test rows.
        errors: Model to metric to errors.
    """

    name: str
    rows: int
    errors: Mapping[str, Mapping[str, ErrorPair]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedStep:
    """A test row of the first seed; a figure that was not measured is missing.

    Args:
        model: Its model.
        family: Its family.
        batch: Its batch.
        operators: Operators of its training step.
        measured: Metric to measured figure.
        predicted: Metric to the figure that ANEE predicts.
    """

    model: str
    family: str
    batch: int
    operators: int
    measured: Mapping[str, float]
    predicted: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class DnnperfReport:
    """One data set under the protocol.

    Args:
        dataset: The labels.
        settings: What was trained.
        comparison: ANEE and what it is compared with, for every seed.
        ablation: ANEE with parts taken out or exchanged, for every seed.
        unseen: Architectures of the paper that were held out together, those that the labels have.
        left_out: Families left out in turn, the worst first.
        rows: Test rows of ANEE under the first seed.
        provenance: Command, versions and training settings.
    """

    dataset: DatasetSummary
    settings: DnnperfSettings
    comparison: tuple[StepScore, ...]
    ablation: tuple[StepScore, ...]
    unseen: tuple[UnseenScore, ...]
    left_out: tuple[UnseenScore, ...]
    rows: tuple[ComparedStep, ...]
    provenance: Mapping[str, Any]

    def mean_error(self, model: str, metric: str) -> float | None:
        """Mean over the seeds of a model's mean relative error on all test rows, %; None without rows."""
        errors = [
            score.test[OVERALL][metric].mre_percent
            for score in (*self.comparison, *self.ablation)
            if score.model == model and metric in score.test.get(OVERALL, {})
        ]
        return sum(errors) / len(errors) if errors else None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return asdict(self)
