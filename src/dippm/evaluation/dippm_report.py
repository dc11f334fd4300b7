"""What the protocol of the DIPPM paper comes to on one data set: plain figures, ready for JSON and for a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dippm.evaluation.novelty import Novelty

__all__ = [
    "ComparedRow",
    "DatasetSummary",
    "DippmReport",
    "ErrorSpread",
    "GroupScore",
    "MigScore",
    "NetworkScore",
    "ProtocolSettings",
    "SourceNoise",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProtocolSettings:
    """What the protocol trains.

    Args:
        epochs: Epochs of the comparison of networks, Table 4; the paper's are 10.
        long_epochs: Epochs of the long runs at most; validation decides which epoch is taken.
        seed: First seed.
        seeds: Seeds of the comparison, at least 1; one split and one training of each network for each.
        family_groups: In how many groups all families are left out in turn; 0 for none.
    """

    epochs: int = 10
    long_epochs: int = 200
    seed: int = 0
    seeds: int = 1
    family_groups: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceNoise:
    """How far two measurements of the same configurations differ, a constant factor between them taken out.

    Args:
        other: What the labels were measured against: ``"second measurement"``, or another source.
        metric: The figure.
        pairs: Configurations that both have.
        shift_percent: Median of other over this, less 1, %.
        difference_percent: Mean absolute difference after that factor is taken out, %.
    """

    other: str
    metric: str
    pairs: int
    shift_percent: float
    difference_percent: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetSummary:
    """The labels that were trained and tested on.

    Args:
        device: Device that was measured.
        conditions: Mode, precision, layout, runtime and optimizer, in words.
        mode: ``"inference"`` or ``"training"``.
        precision: Precision.
        source: Who measured.
        software: Frameworks that ran the models.
        metrics: Figures that were measured.
        rows: Rows after merging second measurements.
        models: Different graphs.
        families: Different families.
        operators: Fewest, median and most operators of a graph.
        unread: Models left out because their graph cannot be read.
        data_hash: Hash of features and figures.
        noise: The labels' own noise.
    """

    device: str
    conditions: str
    mode: str
    precision: str
    source: str
    software: tuple[str, ...]
    metrics: tuple[str, ...]
    rows: int
    models: int
    families: int
    operators: tuple[int, int, int]
    unread: int
    data_hash: str
    noise: tuple[SourceNoise, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkScore:
    """Errors of one training.

    Args:
        model: Network, or ``"gbdt"``.
        seed: Seed of split and training.
        rows: Part to its rows.
        errors: Part to metric, and ``"mean"``, to mean absolute percentage error.
        novelty: Of the test rows; None where they are those of the split by model, whatever their family.
    """

    model: str
    seed: int
    rows: Mapping[str, int]
    errors: Mapping[str, Mapping[str, float]]
    novelty: Novelty | None = None

    @property
    def test_mean(self) -> float:
        """Test error, the mean over the metrics, %."""
        return self.errors["test"]["mean"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRow:
    """One row that a long run was tested on; a figure that was not measured is missing.

    Args:
        model: Its model.
        family: Its family.
        batch: Its batch.
        operators: Operators of its graph.
        novelty: How new its model was.
        measured: Metric to measured figure.
        predicted: Metric to predicted figure.
    """

    model: str
    family: str
    batch: int
    operators: int
    novelty: Novelty
    measured: Mapping[str, float]
    predicted: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupScore:
    """Errors over the rows of a family, or of graphs of a size.

    Args:
        name: Family, or number of operators.
        rows: Test rows.
        errors: Metric, and ``"mean"``, to mean absolute percentage error.
        baseline_errors: The same of the boosted trees, empty where they were not asked.
    """

    name: str
    rows: int
    errors: Mapping[str, float]
    baseline_errors: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorSpread:
    """How errors of a metric spread over the test rows.

    Args:
        metric: The figure.
        bias_percent: Median of the signed error, %.
        quantiles_percent: Absolute errors that 50, 75, 90 and 95 % of the rows stay below, and the largest, %.
        within_percent: Shares of rows with an absolute error below 5, 10 and 20 %, %.
    """

    metric: str
    bias_percent: float
    quantiles_percent: tuple[float, float, float, float, float]
    within_percent: tuple[float, float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class MigScore:
    """Slices chosen by Eq. 2 from predicted memory against those from measured memory.

    Args:
        novelty: Of the rows.
        rows: Test rows.
        right: Rows with the same slice.
        too_small: Rows whose predicted slice is smaller: there the model would run out of memory.
        too_large: Rows whose predicted slice is larger.
        memory_error: Mean absolute percentage error of memory.
        measured_slices: Measured slice to its rows; ``"none"`` where Eq. 2 gives none.
    """

    novelty: Novelty
    rows: int
    right: int
    too_small: int
    too_large: int
    memory_error: float
    measured_slices: Mapping[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class DippmReport:
    """One data set under the protocol.

    Args:
        dataset: The labels.
        settings: What was trained.
        networks: Table 4: every network and the trees, for every seed.
        long_run: The default network, trained long.
        baseline: The trees on the same split.
        constant: Medians of the training rows for every model, on the same split: what knowing nothing gives.
        by_novelty: Long runs of the default network, and the trees, under the three splits.
        rows: Test rows of the long run.
        families: Errors of the long run by family, the largest first.
        sizes: Errors of the long run by number of operators.
        spreads: Errors of the long run, by metric.
        mig: Table 5; empty where memory was not measured.
        mig_examples: Of each novelty the test rows of least and of most memory.
        left_out: Families left out in turn, alone or with others, the worst first.
        provenance: Command, versions and training settings.
    """

    dataset: DatasetSummary
    settings: ProtocolSettings
    networks: tuple[NetworkScore, ...]
    long_run: NetworkScore
    baseline: NetworkScore
    constant: NetworkScore
    by_novelty: tuple[NetworkScore, ...]
    rows: tuple[ComparedRow, ...]
    families: tuple[GroupScore, ...]
    sizes: tuple[GroupScore, ...]
    spreads: tuple[ErrorSpread, ...]
    mig: tuple[MigScore, ...]
    mig_examples: tuple[ComparedRow, ...]
    left_out: tuple[GroupScore, ...]
    provenance: Mapping[str, Any]

    @property
    def left_out_mean(self) -> float | None:
        """Mean error over the families left out in turn, %; None where none was."""
        return sum(each.errors["mean"] for each in self.left_out) / len(self.left_out) if self.left_out else None

    @property
    def left_out_row_mean(self) -> float | None:
        """Mean error over their rows, %; None where none was."""
        rows = sum(each.rows for each in self.left_out)
        return sum(each.errors["mean"] * each.rows for each in self.left_out) / rows if rows else None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return asdict(self)
