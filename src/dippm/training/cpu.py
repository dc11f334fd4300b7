"""Fit the predictor for CPUs on labels of one CPU.

``python -m dippm.training.cpu --labels data/labels/cpu/labels.parquet --seed 0`` rebuilds the shipped artefact:

1. *Labels*: inference in FP32 and eager PyTorch, divided by model: fit, calibration, test. A training step is left out.
2. *Latency*: robust least squares on ``log(predicted / measured)``, with a weak pull of every coefficient to one start
   value, so that a family of which the labels hold little stays near what others are.
3. *Memory*: robust least squares on what the process held beyond what it held before the model.
4. *Intervals*: 90 % quantiles of the error on the calibration part (split conformal prediction). The test part, and
   every family left out in turn, tell how they hold.

The rates of the machine that took the labels are not in the labels. They are kept in the artefact, and are measured
anew on that machine with ``--measure-rates`` and as many threads as the labels have.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dippm.costs.cpu_time import CpuFamily, CpuRates, CpuShares, CpuWork, cpu_seconds
from dippm.costs.memory import live_memory
from dippm.costs.timeline import MemoryTimeline
from dippm.costs.workload import Workload
from dippm.datasets.graph_cache import GraphCache, build_graphs
from dippm.datasets.selection import LabelSelection
from dippm.datasets.splits import leave_family_out, split_by_graph
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import read_parquet
from dippm.errors import DippmError, MissingExtraError, UsageError
from dippm.measuring.cpu_rates import measure_cpu_rates
from dippm.predictors.cpu_calibration import CPU_ARTEFACT_PATH, CpuCalibration, CpuMemory
from dippm.training.physics import conformal_quantile
from dippm.units import BYTES_PER_MIB

__all__ = ["BOUNDS", "CpuRows", "build", "fit_memory", "fit_shares", "main", "read_rows"]

FloatArray = npt.NDArray[np.float64]

BOUNDS: dict[str, tuple[float, float, float]] = {
    # A little beyond 1: the best matrix product that was measured is not the best there is.
    "compute": (0.3, 0.003, 1.2),
    # A cache is many times faster than memory; elements that are handled one by one are many times slower.
    "stream": (1.0, 0.05, 20.0),
    "dispatch": (8.0, 0.2, 300.0),
}
"""Start, lowest and highest value of every coefficient of a family."""

_LOG = logging.getLogger(__name__)
_FRACTIONS = (0.6, 0.2, 0.2)
_PULL = 0.2
_OUTLIER = 0.3
_MEMORY_BOUNDS = ((1.0, 1.0, 0.0), (3.0, 5.0, 50.0))
_MEMORY_SLACK_MB = 10.0
_RATE_TRIES = 20
_DIGITS = 4


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CpuRows:
    """Labels with their work laid out.

    Args:
        labels: The labels.
        work: Work of each by family.
        weights_mb: Weights of each, MiB.
        others_mb: Other live tensors at the peak, MiB.

    Shapes:
        work: [n_labels, n_families]; the others: [n_labels].
    """

    labels: tuple[Label, ...]
    work: CpuWork
    weights_mb: FloatArray
    others_mb: FloatArray

    @property
    def latency_ms(self) -> FloatArray:
        """Measured latencies, ms."""
        return np.array([label.measurement.latency_ms for label in self.labels], dtype=np.float64)

    @property
    def added_mb(self) -> FloatArray:
        """What the process held beyond what it held before the model, MiB."""
        held = [(label.measurement.memory_mb, label.measurement.context_mb) for label in self.labels]
        memory, context = np.array(held, dtype=np.float64).T
        result: FloatArray = memory - context
        return result

    def of(self, labels: Sequence[Label]) -> CpuRows:
        """The rows of some of the labels."""
        keys = {label.key for label in labels}
        chosen = np.array([label.key in keys for label in self.labels], dtype=np.bool_)
        arrays = {name: getattr(self.work, name)[chosen] for name in ("flops", "near_bytes", "far_bytes", "launches")}
        return CpuRows(
            labels=tuple(label for label in self.labels if label.key in keys),
            work=replace(self.work, **arrays),
            weights_mb=self.weights_mb[chosen],
            others_mb=self.others_mb[chosen],
        )


def read_rows(labels: Sequence[Label], folder: Path) -> CpuRows:
    """Lay out the work of labels.

    Args:
        labels: Labels of one selection.
        folder: Cache of their graphs, filled where it lacks any.

    Raises:
        DippmError: ``graphs.unread`` where the graph of a model cannot be read.
    """
    cache = GraphCache(folder)
    failures = build_graphs([label.recipe for label in labels], cache, jobs=1)
    if failures:
        raise DippmError(
            f"{len(failures)} models cannot be read, the first of them {failures[0].recipe.model_key}: "
            f"{failures[0].reason}",
            code="graphs.unread",
        )
    works, lives = [], []
    workloads: dict[tuple[str, int | None], tuple[Workload, MemoryTimeline]] = {}
    for label in labels:
        key, batch = label.recipe.model_key, label.recipe.batch
        prepared = workloads.get((key, None)) or workloads.get((key, batch))
        if prepared is None:
            cached = cache.load(key, batch=batch)
            if cached is None:
                raise DippmError(f"The cache '{folder}' has lost the graph of model {key}.", code="graphs.unread")
            workload = Workload.from_graph(cached.graph)
            prepared = workload, MemoryTimeline.from_workload(workload)
            workloads[key, cached.graph.fixed_batch] = prepared
        workload, timeline = prepared
        works.append(CpuWork.of(workload, [batch]).by_family())
        lives.append(live_memory(timeline, [batch]))
    weights = np.concatenate([live.weight_bytes for live in lives])
    return CpuRows(
        labels=tuple(labels),
        work=CpuWork(
            family=works[0].family,
            flops=np.concatenate([work.flops for work in works]),
            near_bytes=np.concatenate([work.near_bytes for work in works]),
            far_bytes=np.concatenate([work.far_bytes for work in works]),
            launches=np.concatenate([work.launches for work in works]),
        ),
        weights_mb=weights / BYTES_PER_MIB,
        others_mb=(np.concatenate([live.peak_bytes for live in lives]) - weights) / BYTES_PER_MIB,
    )


def log_errors(rows: CpuRows, rates: CpuRates, shares: Mapping[CpuFamily, CpuShares]) -> FloatArray:
    """``log(predicted / measured)`` of every row."""
    result: FloatArray = np.log(1e3 * cpu_seconds(rows.work, rates, shares).sum(axis=1) / rows.latency_ms)
    return result


def fit_shares(rows: CpuRows, rates: CpuRates) -> dict[CpuFamily, CpuShares]:
    """Coefficients that fit the latencies best, within :data:`BOUNDS`.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    start, low, high = (
        np.log(np.tile([bound[place] for bound in BOUNDS.values()], len(CpuFamily))) for place in range(3)
    )

    def shares_of(logarithms: FloatArray) -> dict[CpuFamily, CpuShares]:
        values = np.exp(logarithms).reshape(len(CpuFamily), len(BOUNDS)).tolist()
        return {
            family: CpuShares(**dict(zip(BOUNDS, row, strict=True)))
            for family, row in zip(CpuFamily, values, strict=True)
        }

    def residuals(logarithms: FloatArray) -> FloatArray:
        return np.concatenate([log_errors(rows, rates, shares_of(logarithms)), _PULL * (logarithms - start)])

    fitted = shares_of(_least_squares(residuals, start, low, high))
    return {
        family: CpuShares(**{name: _round(value) for name, value in asdict(shares).items()})
        for family, shares in fitted.items()
    }


def fit_memory(rows: CpuRows) -> CpuMemory:
    """Coefficients that fit the memory best, without their spread."""
    design = np.stack([rows.weights_mb, rows.others_mb, np.ones(len(rows.labels))], axis=1)
    scale = design[:, 0] + design[:, 1] + _MEMORY_SLACK_MB

    def residuals(coefficients: FloatArray) -> FloatArray:
        result: FloatArray = (design @ coefficients - rows.added_mb) / scale
        return result

    low, high = (np.array(bound) for bound in _MEMORY_BOUNDS)
    weights, activations, fixed = _least_squares(residuals, low + 0.5, low, high).tolist()
    return CpuMemory(
        weights=_round(weights),
        activations=_round(activations),
        fixed_mb=_round(fixed),
        library_mb=0.0,
        context_mb=0.0,
        spread=0.0,
        slack_mb=_MEMORY_SLACK_MB,
    )


def _add_process(memory: CpuMemory, rows: CpuRows) -> CpuMemory:
    """What the process itself held: at the start of a campaign PyTorch alone, and later what models came from."""
    beyond = rows.added_mb - _added_mb(rows, memory)
    contexts = [label.measurement.context_mb for label in rows.labels if label.measurement.context_mb is not None]
    return replace(memory, library_mb=_round(max(float(beyond.max()), 0.0)), context_mb=_round(min(contexts)))


def _added_mb(rows: CpuRows, memory: CpuMemory) -> FloatArray:
    result: FloatArray = memory.weights * rows.weights_mb + memory.activations * rows.others_mb + memory.fixed_mb
    return result


def memory_scores(rows: CpuRows, memory: CpuMemory) -> FloatArray:
    """Error of every row's added memory over ``what is predicted + slack_mb``."""
    predicted = _added_mb(rows, memory)
    result: FloatArray = np.abs(rows.added_mb - predicted) / (predicted + memory.slack_mb)
    return result


def build(labels_path: Path, *, graphs: Path, rates: CpuRates | None, seed: int) -> CpuCalibration:
    """Run the whole fit.

    Args:
        labels_path: Parquet file of labels of one CPU.
        graphs: Cache of their graphs.
        rates: What that CPU reached; None to measure it now, which must be on that machine.
        seed: Seed of the division.

    Raises:
        UsageError: ``rates.threads`` where the rates are of another number of threads than the labels.
    """
    labels = LabelSelection().choose(read_parquet(labels_path))
    software = labels[0].measurement.software
    rates = _measure_best_rates() if rates is None else rates
    if rates.threads != software.threads:
        raise UsageError(
            f"The labels are of {software.threads} threads, the rates of {rates.threads}.",
            code="rates.threads",
            cure=f"Set OMP_NUM_THREADS={software.threads}.",
        )
    rows = read_rows(labels, graphs)
    split = split_by_graph(rows.labels, fractions=_FRACTIONS, seed=seed)
    fit, calibration, test = (rows.of(part) for part in (split.training, split.validation, split.test))
    _LOG.info("fitting on %d rows", len(fit.labels))
    shares = fit_shares(fit, rates)
    memory = _add_process(fit_memory(fit), rows)
    spread = conformal_quantile(np.abs(log_errors(calibration, rates, shares)))
    memory = replace(memory, spread=_round(conformal_quantile(memory_scores(calibration, memory))))
    tested = log_errors(test, rates, shares)
    unseen = _leave_families_out(rows, rates)
    models = len({label.recipe.model_key for label in labels})
    days = ", ".join(sorted({label.measurement.measured_at[:10] for label in labels}))
    return CpuCalibration(
        version="0.1",
        rates=rates,
        shares=shares,
        memory=memory,
        latency_spread=_round(spread),
        longest_ms=_round(float(rows.latency_ms.max())),
        labels=(
            f"{len(labels)} measurements of {models} small models on {labels[0].measurement.device}, inference, fp32, "
            f"eager {software.framework}, threads: {software.threads}, {days}"
        ),
        provenance={
            "command": f"python -m dippm.training.cpu --labels {labels_path.as_posix()} --seed {seed}",
            "seed": seed,
            "data_sha256": hashlib.sha256(labels_path.read_bytes()).hexdigest(),
            "rows": {"fit": len(fit.labels), "calibration": len(calibration.labels), "test": len(test.labels)},
            "fit": _describe(log_errors(fit, rates, shares), spread),
            "test": _describe(tested, spread),
            "families_left_out": _describe(np.concatenate(list(unseen.values())), spread),
            "family_mape_percent": {
                family: round(100 * float(np.abs(np.expm1(errors)).mean()), 1) for family, errors in unseen.items()
            },
            "memory_test": {
                "median_score_percent": round(100 * float(np.median(memory_scores(test, memory))), 1),
                "coverage_percent": round(100 * float(np.mean(memory_scores(test, memory) <= memory.spread)), 1),
            },
        },
    )


def _leave_families_out(rows: CpuRows, rates: CpuRates) -> dict[str, FloatArray]:
    """Errors on each family of a fit that has not seen it."""
    errors = {}
    for family in sorted({label.recipe.family for label in rows.labels}):
        split = leave_family_out(rows.labels, [family])
        errors[family] = log_errors(rows.of(split.test), rates, fit_shares(rows.of(split.training), rates))
    return errors


def _describe(errors: FloatArray, spread: float) -> dict[str, float]:
    relative = 100 * np.abs(np.expm1(errors))
    return {
        "rows": len(errors),
        "mape_percent": round(float(relative.mean()), 1),
        "median_ape_percent": round(float(np.median(relative)), 1),
        "interval_coverage_percent": round(100 * float(np.mean(np.abs(errors) <= spread)), 1),
    }


def _measure_best_rates() -> CpuRates:
    """The best of many tries: what else runs on the machine only ever makes it slower."""
    tries = [measure_cpu_rates() for _ in range(_RATE_TRIES)]
    return CpuRates(
        gflops=_round(max(rates.gflops for rates in tries)),
        bandwidth_gb_s=_round(max(rates.bandwidth_gb_s for rates in tries)),
        dispatch_us=_round(min(rates.dispatch_us for rates in tries)),
        threads=tries[0].threads,
    )


def _least_squares(residuals: object, start: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    try:
        from scipy.optimize import least_squares
    except ImportError as exc:
        raise MissingExtraError(package="scipy", extra="train", purpose="fit the coefficients") from exc
    solution: FloatArray = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=_OUTLIER).x
    return solution


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: fit, write the artefact, print its provenance."""
    parser = argparse.ArgumentParser(description="Fit the predictor for CPUs on labels of one CPU.")
    parser.add_argument("--labels", type=Path, default=Path("data/labels/cpu/labels.parquet"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--graphs", type=Path, help="cache of graphs; without it they are read anew")
    parser.add_argument("--measure-rates", action="store_true", help="on the machine that took the labels")
    parser.add_argument("--out", type=Path, default=CPU_ARTEFACT_PATH)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    rates = None if options.measure_rates else CpuCalibration.read().rates
    with tempfile.TemporaryDirectory() as folder:
        graphs = Path(folder) if options.graphs is None else options.graphs
        calibration = build(options.labels, graphs=graphs, rates=rates, seed=options.seed)
    calibration.write(options.out)
    sys.stdout.write(json.dumps(asdict(calibration), indent=1) + "\n")


if __name__ == "__main__":
    main()
