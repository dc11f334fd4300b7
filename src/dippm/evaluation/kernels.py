"""How well kernel times are predicted: unseen shapes, and devices that were left out of the training.

Two protocols, both on the untouched part of the shapes (15 %, by `dippm.datasets.kernels.split_by_shape`):

* **split**: every device was measured, the shapes are new. Our figures are those of the shipped artefact.
* **left out**: one device is missing from the training altogether, and the shapes are new as well. The networks for
  unmeasured devices are trained again without it.

Beside ours stand a gradient-boosted tree on log shapes and roofline terms (LightGBM), trained on the same rows, and the
plain roofline ``max(FLOPs / peak, bytes / bandwidth)``.

Measured times are compared as published. For convolutions the measuring sweep itself added time that grew with its rows
(see `dippm.datasets.kernels`); ours adds the drift fitted on training rows before comparing, and "without drift" shows
the same prediction without it. A left-out device gets the mean drift of the others of its age.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dippm.costs.kernels.features import Features, compute_features, lower_bound_ms
from dippm.costs.kernels.model import ARTEFACT_DIRECTORY, KernelModel
from dippm.costs.kernels.network import TRANSFER, Network
from dippm.costs.kernels.problems import ConvProblem, Family, FloatArray, GemmProblem, Problem
from dippm.costs.kernels.tile_law import TileLaw
from dippm.datasets.kernels import KernelRows, Part, SweepDrift, load_family, split_by_shape
from dippm.devices import DeviceSpec, find_device
from dippm.errors import MissingExtraError, UsageError

__all__ = [
    "KernelReport",
    "KernelScore",
    "TrainedKernels",
    "Trainer",
    "evaluate_kernels",
    "features_of_rows",
    "render_markdown",
]

SPLIT, LEFT_OUT = "split", "left out"
OURS, WITHOUT_DRIFT, GBDT, ROOFLINE = "dippm", "dippm without drift", "gbdt", "roofline"

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TrainedKernels:
    """What training gives: a network or a law in its place, and the sweep's drift fitted beside it."""

    network: Network | TileLaw
    drift: SweepDrift


class Trainer(Protocol):
    """Trains one network; `dippm.training.kernels.train_network` is one."""

    def __call__(
        self, rows: KernelRows, features: Features, chosen: BoolArray, *, kind: str, seed: int
    ) -> TrainedKernels:
        """Train on the chosen rows; ``kind`` is ``"measured"`` or ``"transfer"``."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelScore:
    """Errors of one method on one table and device.

    Args:
        protocol: ``"split"`` or ``"left out"``.
        table: Table name, such as ``"linear"`` or ``"gelu"``.
        device: Device name.
        method: ``"dippm"``, ``"dippm without drift"``, ``"gbdt"`` or ``"roofline"``.
        mape: Mean absolute percentage error, percent.
        median_ape: Median absolute percentage error, percent.
        rows: Measurements compared.
    """

    protocol: str
    table: str
    device: str
    method: str
    mape: float
    median_ape: float
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelReport:
    """All scores of one evaluation.

    Args:
        seed: Seed of split and training.
        scores: The scores.
    """

    seed: int
    scores: tuple[KernelScore, ...]

    def find(self, *, protocol: str, table: str, device: str, method: str = OURS) -> KernelScore | None:
        """The score of this method, table and device; a device may be named by its beginning, such as ``"A100"``."""
        for score in self.scores:
            same = (score.protocol, score.table, score.method) == (protocol, table, method)
            if same and (score.device == device or score.device.startswith(f"{device}-")):
                return score
        return None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return {"seed": self.seed, "scores": [asdict(score) for score in self.scores]}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> KernelReport:
        """The report that `to_dict` gave, such as the ``metrics`` of the artefact."""
        scores = tuple(KernelScore(**entry) for entry in stored["scores"])
        return cls(seed=stored["seed"], scores=scores)

    def merged_into(self, other: KernelReport) -> KernelReport:
        """The other report with this one's tables in the place of its own; its order of tables is kept."""
        own: dict[tuple[str, str], list[KernelScore]] = {}
        for score in self.scores:
            own.setdefault((score.protocol, score.table), []).append(score)
        renewed = set(own)
        merged: list[KernelScore] = []
        for score in other.scores:
            key = score.protocol, score.table
            # At the first row of a table that was scored anew all its new rows take their place.
            if key in own:
                merged += own.pop(key)
            elif key not in renewed:
                merged.append(score)
        merged += [score for scores in own.values() for score in scores]
        return KernelReport(seed=self.seed, scores=tuple(merged))


def features_of_rows(rows: KernelRows) -> Features:
    """Features and baselines of measured rows, each on its own device."""

    def build(problem: Problem, device: DeviceSpec) -> tuple[npt.NDArray[np.float32], FloatArray, FloatArray]:
        features = compute_features(rows.family, problem, [device])
        return features.matrix[0], features.baseline_ms[0], features.peak_rate_ms[0]

    matrix, baseline, peak_rate = _per_device(rows, build)
    return Features(matrix=matrix, baseline_ms=baseline, peak_rate_ms=peak_rate)


def evaluate_kernels(
    data: Path | None = None,
    *,
    seed: int = 0,
    train: Trainer | None = None,
    artefact: Path = ARTEFACT_DIRECTORY,
    families: Sequence[Family] = tuple(Family),
) -> KernelReport:
    """Score kernel times on untouched shapes.

    Args:
        data: Folder with the measured tables; by default `dippm.datasets.location.data_folder`.
        seed: Seed of the split; must be the artefact's own, or its training would have seen test shapes.
        train: Trains the networks for left-out devices, minutes of work; without it those scores are the ones stored
            in the artefact.
        artefact: Folder of the artefact.
        families: Families to score.

    Returns:
        The report.

    Raises:
        UsageError: The artefact was trained with another seed.
        DippmError: The measured tables are not there.
        MissingExtraError: LightGBM, pandas or pyarrow is not installed.
    """
    model = KernelModel(artefact)
    if model.manifest["seed"] != seed:
        raise UsageError(
            f"The artefact was trained on the split of seed {model.manifest['seed']}. Got seed {seed}.",
            code="evaluation.seed",
        )
    scores: list[KernelScore] = []
    for family in families:
        rows = load_family(family, data=data)
        part = split_by_shape(rows, seed=seed)
        scores += _score_split(model, rows, part, seed=seed)
        if train is not None:
            scores += _score_left_out(train, rows, part, seed=seed)
    if train is None:
        wanted = {score.table for score in scores}
        stored = KernelReport.from_dict(model.manifest["metrics"]) if "metrics" in model.manifest else None
        known = () if stored is None else stored.scores
        scores += [each for each in known if each.protocol == LEFT_OUT and each.table in wanted]
    return KernelReport(seed=seed, scores=tuple(scores))


def _score_split(model: KernelModel, rows: KernelRows, part: npt.NDArray[np.int8], *, seed: int) -> list[KernelScore]:
    test, train = part == Part.TEST, part != Part.TEST
    entry = model.manifest["families"][rows.family.value]["sweep_drift"]
    drift = SweepDrift(
        knots=np.array(entry["knots"]), added_ms={name: np.array(each) for name, each in entry["added_ms"].items()}
    )
    (kernel_ms,) = _per_device(rows, lambda problem, device: (model.time_ms(rows.family, problem, device),))
    predictions = _with_drift(rows, kernel_ms, drift)
    predictions[GBDT] = _gbdt(rows, train, seed=seed)
    predictions[ROOFLINE] = _roofline(rows)
    return _score(rows, test, predictions, protocol=SPLIT)


def _score_left_out(train: Trainer, rows: KernelRows, part: npt.NDArray[np.int8], *, seed: int) -> list[KernelScore]:
    features = features_of_rows(rows)
    (bound_ms,) = _per_device(rows, lambda problem, device: (lower_bound_ms(rows.family, problem, [device])[0],))
    scores: list[KernelScore] = []
    for name in np.unique(rows.device):
        left_out = rows.device == name
        chosen = (part != Part.TEST) & ~left_out
        trained = train(rows, features, chosen, kind=TRANSFER, seed=seed)
        kernel_ms = _kernel_ms(trained.network, rows, features)
        predictions = _with_drift(rows, np.maximum(kernel_ms, bound_ms), trained.drift)
        predictions[GBDT] = _gbdt(rows, chosen, seed=seed)
        predictions[ROOFLINE] = _roofline(rows)
        scores += _score(rows, (part == Part.TEST) & left_out, predictions, protocol=LEFT_OUT)
    return scores


def _kernel_ms(network: Network | TileLaw, rows: KernelRows, features: Features) -> FloatArray:
    if isinstance(network, Network):
        return features.baseline_ms * np.exp(network.log_ratio(features.matrix))
    law = network

    def follow(problem: Problem, device: DeviceSpec) -> tuple[FloatArray]:
        if not isinstance(problem, GemmProblem):
            raise UsageError(f"A law of tiles has no {type(problem).__name__}.", code="kernel.problem")
        return (law.time_ms(problem, device),)

    return _per_device(rows, follow)[0]


def _with_drift(rows: KernelRows, kernel_ms: FloatArray, drift: SweepDrift) -> dict[str, FloatArray]:
    if not drift.added_ms:
        return {OURS: kernel_ms}
    return {OURS: kernel_ms + drift.time_ms(rows), WITHOUT_DRIFT: kernel_ms}


def _score(
    rows: KernelRows, chosen: BoolArray, predictions: dict[str, FloatArray], *, protocol: str
) -> list[KernelScore]:
    scores = []
    for table in np.unique(rows.table[chosen]):
        for device in np.unique(rows.device[chosen]):
            mask = chosen & (rows.table == table) & (rows.device == device)
            for method, predicted in predictions.items():
                error = 100.0 * np.abs(predicted[mask] / rows.time_ms[mask] - 1.0)
                scores.append(
                    KernelScore(
                        protocol=protocol,
                        table=str(table),
                        device=str(device),
                        method=method,
                        mape=round(float(error.mean()), 3),
                        median_ape=round(float(np.median(error)), 3),
                        rows=int(mask.sum()),
                    )
                )
    return scores


def _roofline(rows: KernelRows) -> FloatArray:
    def bound(problem: Problem, device: DeviceSpec) -> tuple[FloatArray]:
        compute_ms, memory_ms = _roofline_terms(problem, device)
        return (np.maximum(compute_ms, memory_ms),)

    return _per_device(rows, bound)[0]


def _roofline_terms(problem: Problem, device: DeviceSpec) -> tuple[FloatArray, FloatArray]:
    # The others do about one operation per element, which never bounds them.
    flops = problem.flops if isinstance(problem, GemmProblem | ConvProblem) else problem.bytes / 8.0
    return flops / (device.peak_tflops["fp32"] * 1e9), problem.bytes / (device.bandwidth_gb_s * 1e6)


def _gbdt(rows: KernelRows, chosen: BoolArray, *, seed: int) -> FloatArray:
    """The reference: LightGBM on log shapes, roofline terms and the device's figures."""
    try:
        import lightgbm
    except ImportError as exc:
        raise MissingExtraError(package="lightgbm", extra="train", purpose="compare with boosted trees") from exc

    def own(problem: Problem, device: DeviceSpec) -> tuple[FloatArray]:
        terms = _roofline_terms(problem, device)
        figures = (device.peak_tflops["fp32"], device.bandwidth_gb_s, device.sm_count, device.l2_mb)
        columns = [*np.log(terms), np.log(np.maximum(*terms)), *(np.full(len(problem), figure) for figure in figures)]
        return (np.column_stack(columns),)

    operator = np.unique(rows.table, return_inverse=True)[1]
    matrix = np.column_stack([np.log(rows.shape), _per_device(rows, own)[0], operator])
    trees = lightgbm.LGBMRegressor(
        n_estimators=500, num_leaves=63, learning_rate=0.05, random_state=seed, n_jobs=1, verbose=-1
    )
    booster = trees.fit(matrix[chosen], np.log(rows.time_ms[chosen])).booster_
    return np.asarray(np.exp(booster.predict(matrix)), dtype=np.float64)


def _per_device(
    rows: KernelRows, compute: Callable[[Problem, DeviceSpec], tuple[npt.NDArray[Any], ...]]
) -> tuple[npt.NDArray[Any], ...]:
    """Apply a function to each device's rows and put the results back in the rows' order."""
    results: list[npt.NDArray[Any]] = []
    for name in np.unique(rows.device):
        index = np.flatnonzero(rows.device == name)
        picked = {each.name: getattr(rows.problem, each.name)[index] for each in fields(rows.problem)}
        parts = compute(type(rows.problem)(**picked), find_device(str(name)))
        if not results:
            results = [np.empty((len(rows), *each.shape[1:]), dtype=each.dtype) for each in parts]
        for result, each in zip(results, parts, strict=True):
            result[index] = each
    return tuple(results)


def render_markdown(report: KernelReport) -> str:
    """The report as Markdown: one table per protocol, ours beside the references."""
    lines = [
        "# Kernel times: measured against predicted",
        "",
        f"Written by `python -m dippm.training.kernels --seed {report.seed} --report docs/reports/kernels.md`.",
        "Untouched 15 % of shapes (the same shapes on every device), absolute percentage errors in percent. *GBDT* is",
        "LightGBM on log shapes, roofline terms and device figures, trained on the same rows; *roofline* is",
        "max(FLOPs / peak, bytes / bandwidth). Measured times are compared as published. The convolution sweep added",
        "time that grew with its rows; *without drift* is our prediction of the kernel alone against those times.",
        "A left-out device gets the mean drift of the other devices of its age, never its own.",
        "",
        "Which device features the networks for unmeasured devices see was chosen on validation shapes with all these",
        "left-out devices in view: expect a device that is truly new to do somewhat worse than the second table says.",
        "So was the form of the law that stands in for such a network at batched products; its coefficients are fitted",
        "without the left-out device.",
        "",
        "## New shapes, measured devices (mean)",
        "",
        *_markdown_table(report, protocol=SPLIT, value="mape"),
        "",
        "## Device left out of the training entirely, new shapes (median)",
        "",
        *_markdown_table(report, protocol=LEFT_OUT, value="median_ape"),
    ]
    return "\n".join(lines) + "\n"


def _markdown_table(report: KernelReport, *, protocol: str, value: str) -> list[str]:
    chosen = [score for score in report.scores if score.protocol == protocol]
    if not chosen:
        return ["Not evaluated."]
    methods = [method for method in (OURS, WITHOUT_DRIFT, GBDT, ROOFLINE) if any(s.method == method for s in chosen)]
    lines = [
        f"| table | device | rows | {' | '.join(methods)} |",
        f"|---|---|---:|{'---:|' * len(methods)}",
    ]
    for key in dict.fromkeys((score.table, score.device) for score in chosen):
        cells = {score.method: score for score in chosen if (score.table, score.device) == key}
        values = [f"{getattr(cells[method], value):.1f}" if method in cells else "" for method in methods]
        lines.append(f"| {key[0]} | {key[1]} | {cells[OURS].rows} | {' | '.join(values)} |")
    return lines
