"""Fit the predictor for CPUs on labels of several CPUs.

``python -m dippm.training.cpu`` rebuilds the shipped artefact from all tables under ``data/labels/cpu*``:

1. *Labels*: inference in FP32 and eager PyTorch. Training steps are left out.
2. *Latency*: robust least squares on ``log(predicted / measured)``, one set of shares for all machines, with a weak
   pull of every coefficient to one start value, so that a family of which the labels hold little stays near what others
   are. Beside the shares each table has a pace of its own, pulled to 1: the part of its rates that the machine gave
   while the labels were taken. A rate that was never measured on a machine is fitted too, pulled to what is usual; the
   pace of such a machine, whose other rates were taken at another time, is pulled weakly.
3. *Memory*: robust least squares on what the process held beyond what it held before the model, with an interval from
   the error on models that were held out (split conformal prediction). Of the first table alone: it was measured in one
   run, and in one process.
4. *Intervals* of the latency: 90 % quantile of the errors on every family left out in turn. How much wider they are for
   another machine is what each machine was off by when the fit had not seen it, over its distance from the others; for
   longer runs it is what the models of another collection were off by. Models held out tell how they hold.

What a machine reaches stands beside its labels, in ``rates.json``. It is measured on that machine with
``--measure-rates data/labels/cpu/rates.json`` and as many threads as the labels have.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dippm.costs.cpu_time import CpuFamily, CpuRates, CpuShares, cpu_seconds
from dippm.datasets.splits import Split, leave_family_out, split_by_graph
from dippm.datasets.store.label import Label
from dippm.errors import MissingExtraError
from dippm.predictors.cpu_calibration import CPU_ARTEFACT_PATH, CpuCalibration, CpuMachine, CpuMemory
from dippm.training.cpu_tables import (
    RATES,
    RATES_FILE,
    CpuRows,
    CpuTable,
    MeasuredRates,
    measure_best_rates,
    read_table,
)
from dippm.training.physics import conformal_quantile

__all__ = ["BOUNDS", "Fit", "build", "fit_memory", "fit_shares", "log_errors", "main"]

FloatArray = npt.NDArray[np.float64]

BOUNDS: dict[str, tuple[float, float, float]] = {
    # Beyond 1: the product and the convolution that are measured are not the best there are.
    "compute": (0.5, 0.003, 2.0),
    # Elements that are handled one by one are many times slower than a copy.
    "stream": (0.5, 0.01, 20.0),
    "dispatch": (4.0, 0.2, 300.0),
}
"""Start, lowest and highest value of every coefficient of a family."""

_FOLDERS = ("cpu", "cpu-amd-epyc", "cpu-standard", "cpu-standard-two-threads")
_TABLES = tuple(Path("data/labels") / folder / "labels.parquet" for folder in _FOLDERS)
_LOG = logging.getLogger(__name__)
_FRACTIONS = (0.6, 0.2, 0.2)
_PULL = 0.2
_PACE_PULL = 10.0
_RATE_PULL = 1.0
_RATE_BOUND = 1.5
_OUTLIER = 0.3
_MEMORY_BOUNDS = ((1.0, 1.0, 0.0), (3.0, 5.0, 50.0))
_MEMORY_SLACK_MB = 10.0
_DIGITS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """What fits the latencies of some tables best.

    Args:
        shares: Coefficients of every family, for all tables.
        rates: What each machine gave while its labels were taken, in the order of the tables.
        paces: That over what was measured.
    """

    shares: Mapping[CpuFamily, CpuShares]
    rates: tuple[CpuRates, ...]
    paces: tuple[float, ...]


def log_errors(rows: CpuRows, rates: CpuRates, shares: Mapping[CpuFamily, CpuShares]) -> FloatArray:
    """``log(predicted / measured)`` of every row."""
    result: FloatArray = np.log(1e3 * cpu_seconds(rows.work, rates, shares).sum(axis=1) / rows.latency_ms)
    return result


def fit_shares(tables: Sequence[CpuTable]) -> Fit:
    """Coefficients and rates that fit the latencies best, within :data:`BOUNDS`.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    of_shares = (np.log(np.tile([bound[place] for bound in BOUNDS.values()], len(CpuFamily))) for place in range(3))
    of_rates = (
        np.full(sum(1 + len(table.measured.missing) for table in tables), value * _RATE_BOUND) for value in (0, -1, 1)
    )
    start, low, high = (np.concatenate(parts) for parts in zip(of_shares, of_rates, strict=True))
    count = len(CpuFamily) * len(BOUNDS)
    # Where some rates were never measured, the others are of another time than the labels: they anchor little.
    missing = [len(table.measured.missing) for table in tables]
    own_pulls = [np.full(1 + lacks, _RATE_PULL if lacks else _PACE_PULL) for lacks in missing]
    pull = np.concatenate([np.full(count, _PULL), *own_pulls])

    def shares_of(logarithms: FloatArray) -> dict[CpuFamily, CpuShares]:
        values = np.exp(logarithms[:count]).reshape(len(CpuFamily), len(BOUNDS)).tolist()
        return {
            family: CpuShares(**dict(zip(BOUNDS, row, strict=True)))
            for family, row in zip(CpuFamily, values, strict=True)
        }

    def paces_of(logarithms: FloatArray) -> list[tuple[float, ...]]:
        """Of each table its pace, and the factors on the rates that it lacks."""
        ends = np.cumsum([1 + len(table.measured.missing) for table in tables])
        return [tuple(part.tolist()) for part in np.split(np.exp(logarithms[count:]), ends[:-1])]

    def residuals(logarithms: FloatArray) -> FloatArray:
        shares = shares_of(logarithms)
        errors = [
            log_errors(table.rows, _slow_down(table.measured, factors), shares)
            for table, factors in zip(tables, paces_of(logarithms), strict=True)
        ]
        return np.concatenate([*errors, pull * (logarithms - start)])

    fitted = _least_squares(residuals, start, low, high)
    rates = [_slow_down(table.measured, pace) for table, pace in zip(tables, paces_of(fitted), strict=True)]
    return Fit(
        shares={
            family: CpuShares(**{name: _round(value) for name, value in asdict(shares).items()})
            for family, shares in shares_of(fitted).items()
        },
        rates=tuple(
            CpuRates(**{name: _round(getattr(each, name)) for name in RATES}, threads=each.threads) for each in rates
        ),
        paces=tuple(_round(factors[0]) for factors in paces_of(fitted)),
    )


def _slow_down(measured: MeasuredRates, factors: Sequence[float]) -> CpuRates:
    """The rates at a pace, which is the first factor; the others are of the rates that were never measured."""
    pace, *own = factors
    scale = dict.fromkeys(RATES, pace)
    for name, factor in zip(measured.missing, own, strict=True):
        scale[name] *= factor
    values = {
        name: getattr(measured.rates, name) * (1.0 / factor if name.endswith("_us") else factor)
        for name, factor in scale.items()
    }
    return replace(measured.rates, **values)


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


def build(paths: Sequence[Path], *, graphs: Path, seed: int) -> CpuCalibration:
    """Run the whole fit.

    Args:
        paths: Parquet files of labels, each of one CPU and one number of threads, with its rates beside it; the memory
            is fitted on the first.
        graphs: Cache of their graphs.
        seed: Seed of the division.

    Raises:
        UsageError: ``rates.unreadable`` or ``rates.threads``.
    """
    tables = [read_table(path, graphs) for path in paths]
    every = [label for table in tables for label in table.rows.labels]
    split = split_by_graph(every, fractions=_FRACTIONS, seed=seed)
    parts = (split.training, split.validation, split.test)
    _LOG.info("fitting on %d labels of %d tables", len(every), len(tables))
    fitted = fit_shares(tables)
    tested = _test_left_out(tables, Split(training=(*split.training, *split.validation), test=split.test))
    families = _leave_out(tables, {name: leave_family_out(every, [name]) for name in _names(every, _family)})
    machines = _leave_out(tables, _splits(every, _device))
    collections = _leave_out(tables, _splits(every, _collection))
    unseen = np.concatenate([left_out.errors for left_out in families.values()])
    spread = conformal_quantile(np.abs(unseen))
    per_rate = {name: _doubt(each.errors, spread, each.distance) for name, each in machines.items()}
    per_length = {name: _doubt(each.errors, spread, each.beyond) for name, each in collections.items()}
    first = tables[0].rows
    memory = _add_process(fit_memory(first.of(split.training)), first)
    scores = memory_scores(first.of(split.validation), memory)
    memory = replace(memory, spread=_round(conformal_quantile(scores)))
    devices = ", ".join(sorted({table.device for table in tables}))
    models = len({label.recipe.model_key for label in every})
    days = ", ".join(sorted({label.measurement.measured_at[:10] for label in every}))
    threads = ", ".join(sorted({str(rates.threads) for rates in fitted.rates}))
    return CpuCalibration(
        version="0.2",
        machines=tuple(
            CpuMachine(device=table.device, rates=rates) for table, rates in zip(tables, fitted.rates, strict=True)
        ),
        shares=fitted.shares,
        memory=memory,
        latency_spread=_round(spread),
        doubt_per_rate=_round(max([0.0, *per_rate.values()])),
        doubt_beyond_labels=_round(max([0.0, *per_length.values()])),
        longest_ms=_round(max(float(table.rows.latency_ms.max()) for table in tables)),
        labels=(
            f"{len(every)} measurements of {models} models on {devices}, inference, fp32, eager "
            f"{every[0].measurement.software.framework.partition(',')[0]}, threads: {threads}, {days}"
        ),
        provenance={
            "command": " ".join(
                ["python -m dippm.training.cpu --labels", *(path.as_posix() for path in paths), f"--seed {seed}"]
            ),
            "seed": seed,
            "tables": [
                {
                    "labels": table.path.as_posix(),
                    "sha256": hashlib.sha256(table.path.read_bytes()).hexdigest(),
                    "device": table.device,
                    "rows": len(table.rows.labels),
                    "measured_rates": asdict(table.measured.rates),
                    "never_measured": list(table.measured.missing),
                    "pace": pace,
                    "fit": _describe(log_errors(table.rows, rates, fitted.shares), spread),
                }
                for table, rates, pace in zip(tables, fitted.rates, fitted.paces, strict=True)
            ],
            "rows": dict(zip(("fit", "calibration", "test"), map(len, parts), strict=True)),
            "test": _describe(tested.errors, spread),
            "families_left_out": _describe(unseen, spread),
            "family_mape_percent": {name: _mape_percent(each.errors) for name, each in families.items()},
            "machine_left_out": {
                name: _describe_machine(each, spread, own=max(per_rate.values()), others=_without(per_rate, name))
                for name, each in machines.items()
            },
            "collection_left_out": {name: _describe(each.errors, spread) for name, each in collections.items()},
            "memory_test": _describe_memory(first.of(split.test), memory),
        },
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _LeftOut:
    """What a fit was off by on labels that it had not seen.

    Args:
        errors: ``log(predicted / measured)``.
        distance: How unlike their machines are to the nearest of the fit, averaged over the labels.
        beyond: Logarithm of their predicted latency over the longest of the fit, where it is longer, likewise.
    """

    errors: FloatArray
    distance: float
    beyond: float


def _leave_out(tables: Sequence[CpuTable], splits: Mapping[str, Split]) -> dict[str, _LeftOut]:
    """Errors on the test part of each split of a fit to its training part."""
    return {name: _test_left_out(tables, split) for name, split in splits.items()}


def _test_left_out(tables: Sequence[CpuTable], split: Split) -> _LeftOut:
    training, test = ([table.of(part) for table in tables] for part in (split.training, split.test))
    fitted = fit_shares(training)
    # A table without labels in the fit keeps its measured rates: nothing pulls them anywhere else.
    known = [rates for table, rates in zip(training, fitted.rates, strict=True) if table.rows.labels]
    longest_ms = max(float(table.rows.latency_ms.max()) for table in training if table.rows.labels)
    errors, distances, beyond = [], [], []
    for table, rates in zip(test, fitted.rates, strict=True):
        error = log_errors(table.rows, rates, fitted.shares)
        errors.append(error)
        distances.append(np.full(len(error), min(rates.distance_to(other) for other in known)))
        beyond.append(np.maximum(error + np.log(table.rows.latency_ms / longest_ms), 0.0))
    return _LeftOut(
        errors=np.concatenate(errors),
        distance=float(np.concatenate(distances).mean()),
        beyond=float(np.concatenate(beyond).mean()),
    )


def _doubt(errors: FloatArray, spread: float, measure: float) -> float:
    """By how much the interval must grow per unit of a measure to hold 90 % of what was left out; at least 0."""
    return max((conformal_quantile(np.abs(errors)) - spread) / measure, 0.0) if measure > 0 else 0.0


def _without(doubts: Mapping[str, float], name: str) -> float:
    return max((doubt for other, doubt in doubts.items() if other != name), default=0.0)


def _splits(labels: Sequence[Label], name_of: Callable[[Label], str]) -> dict[str, Split]:
    """Each name's labels as a test part, and all others for training; nothing where there is one name alone."""
    names = _names(labels, name_of)
    return {
        name: Split(
            training=tuple(label for label in labels if name_of(label) != name),
            test=tuple(label for label in labels if name_of(label) == name),
        )
        for name in names
        if len(names) > 1
    }


def _names(labels: Sequence[Label], name_of: Callable[[Label], str]) -> list[str]:
    return sorted({name_of(label) for label in labels})


def _family(label: Label) -> str:
    return label.recipe.family


def _device(label: Label) -> str:
    return label.measurement.device


def _collection(label: Label) -> str:
    return label.recipe.collection


def _mape_percent(errors: FloatArray) -> float:
    return round(100 * float(np.abs(np.expm1(errors)).mean()), 1)


def _describe_memory(rows: CpuRows, memory: CpuMemory) -> dict[str, float]:
    scores = memory_scores(rows, memory)
    return {
        "median_score_percent": round(100 * float(np.median(scores)), 1),
        "coverage_percent": round(100 * float(np.mean(scores <= memory.spread)), 1),
    }


def _describe(errors: FloatArray, spread: float) -> dict[str, float]:
    relative = 100 * np.abs(np.expm1(errors))
    return {
        "rows": len(errors),
        "mape_percent": _mape_percent(errors),
        "median_ape_percent": round(float(np.median(relative)), 1),
        "predicted_over_measured": round(float(np.exp(np.median(errors))), 2),
        "interval_coverage_percent": round(100 * float(np.mean(np.abs(errors) <= spread)), 1),
    }


def _describe_machine(left_out: _LeftOut, spread: float, *, own: float, others: float) -> dict[str, float]:
    """Beside the errors those at the machine's own pace, and coverage with the doubt that the other machines taught."""
    errors = left_out.errors
    return {
        **_describe(errors, spread + own * left_out.distance),
        "coverage_by_others_percent": _describe(errors, spread + others * left_out.distance)[
            "interval_coverage_percent"
        ],
        "mape_percent_at_own_pace": _mape_percent(errors - np.median(errors)),
        "distance": round(left_out.distance, 2),
    }


def _least_squares(residuals: object, start: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    try:
        from scipy.optimize import least_squares
    except ImportError as exc:
        raise MissingExtraError(package="scipy", extra="train", purpose="fit the coefficients") from exc
    solution: FloatArray = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=_OUTLIER, ftol=1e-6
    ).x
    return solution


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: fit, write the artefact, print its provenance; or measure what this machine reaches."""
    parser = argparse.ArgumentParser(description="Fit the predictor for CPUs on labels of several CPUs.")
    parser.add_argument("--labels", type=Path, nargs="+", default=list(_TABLES), help=f"with {RATES_FILE} beside each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--graphs", type=Path, help="cache of graphs; without it they are read anew")
    parser.add_argument("--measure-rates", type=Path, help="measure this machine, write this file and do no more")
    parser.add_argument("--out", type=Path, default=CPU_ARTEFACT_PATH)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    if options.measure_rates is not None:
        measure_best_rates().write(options.measure_rates)
        return
    with tempfile.TemporaryDirectory() as folder:
        graphs = Path(folder) if options.graphs is None else options.graphs
        calibration = build(options.labels, graphs=graphs, seed=options.seed)
    calibration.write(options.out)
    sys.stdout.write(json.dumps(asdict(calibration), indent=1) + "\n")


if __name__ == "__main__":
    main()
