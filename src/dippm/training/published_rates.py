"""Fit what only other machines can tell: how fast hosts are, and what full-rate tensor cores reach of their peak.

``python -m dippm.training.published_rates`` reads ``data/published`` and changes, in the artefacts that
:mod:`dippm.training.physics`, :mod:`dippm.training.physics_training` and :mod:`dippm.training.additive` have written,

- ``host_scale`` of inference and that of training steps;
- ``tensor_feed``, see :class:`~dippm.costs.rates.Rates`. It leaves GeForce cards as they are, on which all other rates
  and the networks were fitted.

Only models of ``FITTED_MODELS`` are fitted on, by the plain sum, and not under autocast, where the networks answer.
Each machine counts alike in each mode, however many rows it has: hosts differ, and it is their middle that is looked
for.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Mode
from dippm.costs.kernels.model import KernelModel, load_kernel_model
from dippm.costs.latency import break_down_latency
from dippm.costs.rates import Rates
from dippm.costs.workload import WorkloadAt
from dippm.datasets.published import digest_published
from dippm.errors import MissingExtraError
from dippm.evaluation.published import read_graphs
from dippm.evaluation.published_runs import PUBLISHED_FOLDER, PublishedRun, read_published_runs
from dippm.predictors.additive_artefact import ARTEFACT_FOLDER, REGIMES, AdditiveArtefact, manifest_path
from dippm.predictors.calibration import ARTEFACT_PATH, TRAINING_ARTEFACT_PATH, Calibration
from dippm.predictors.prepared_graph import CompiledGraphs

__all__ = ["PublishedItem", "fit_published_rates", "main"]

FloatArray = npt.NDArray[np.float64]
RatesOfMode = dict[Mode, Rates]

_LOG = logging.getLogger(__name__)
# Start, lowest and highest value: host of inference, host of training, feeding of tensor cores. None starts at 1: the
# solver steps in proportion to the logarithm.
_BOUNDS = ((0.8, 0.2, 3.0), (0.8, 0.2, 3.0), (1.5, 0.05, 10.0))
# A decoder's step of many samples is bound by how its cache was kept, which has changed since.
_MOST_DECODED = 8
_SOFT = 0.1
_STEP = 0.05


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PublishedItem:
    """One row with all of its work laid out."""

    run: PublishedRun
    compiled: CompiledGraphs
    at: WorkloadAt

    @classmethod
    def of(cls, run: PublishedRun, compiled: CompiledGraphs) -> PublishedItem:
        """Lay out the row's batch."""
        return cls(run=run, compiled=compiled, at=compiled.plan.work.at([run.row.batch]))

    def predict_ms(self, rates: RatesOfMode, kernels: KernelModel) -> float:
        """Its time, ms."""
        (breakdown,) = break_down_latency(
            self.compiled.plan,
            self.at,
            devices=[self.run.device],
            conditions=self.run.conditions,
            rates=rates[self.run.conditions.mode],
            kernels=kernels,
            times=self.compiled.times,
        )
        return float(breakdown.latency_ms[0])


def fit_published_rates(items: Sequence[PublishedItem], rates: RatesOfMode, kernels: KernelModel) -> RatesOfMode:
    """Rates of hosts and tensor cores that fit the rows best.

    Args:
        items: The rows to fit on.
        rates: Rates of each mode, of which the others stay as they are.
        kernels: Learned kernel times.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError as exc:
        raise MissingExtraError(package="scipy", extra="train", purpose="fit the rates") from exc
    machines = Counter((item.run.machine, item.run.conditions.mode) for item in items)
    weights = np.array([machines[item.run.machine, item.run.conditions.mode] ** -0.5 for item in items])
    start, low, high = (np.log([bound[place] for bound in _BOUNDS]) for place in range(3))

    def changed(values: Sequence[float]) -> RatesOfMode:
        host, training_host, feed = values
        return {
            Mode.INFERENCE: replace(rates[Mode.INFERENCE], host_scale=host, tensor_feed=feed),
            Mode.TRAINING: replace(rates[Mode.TRAINING], host_scale=training_host, tensor_feed=feed),
        }

    def residuals(logarithms: FloatArray) -> FloatArray:
        errors = log_errors(items, changed(np.exp(logarithms).tolist()), kernels)
        _LOG.info("  mean |log error| %.4f", float(np.mean(np.abs(errors))))
        result: FloatArray = weights * errors
        return result

    solution = least_squares(residuals, start, bounds=(low, high), loss="soft_l1", f_scale=_SOFT, diff_step=_STEP)
    return changed([float(f"{value:.4g}") for value in np.exp(solution.x)])


def log_errors(items: Sequence[PublishedItem], rates: RatesOfMode, kernels: KernelModel) -> FloatArray:
    """``log(predicted / measured)`` of every row."""
    predicted = np.array([item.predict_ms(rates, kernels) for item in items])
    result: FloatArray = np.log(predicted / np.array([item.run.row.latency_ms for item in items]))
    return result


def _read_items(folder: Path) -> list[PublishedItem]:
    runs = [
        run
        for run in read_published_runs(folder)[0]
        if run.is_fitted
        and run.has_known_clocks
        # In autocast the networks answer.
        and not run.conditions.precision.is_autocast
        and not (run.row.mode == "decode" and run.row.batch > _MOST_DECODED)
    ]
    graphs = read_graphs(runs, folder)
    return [
        PublishedItem.of(run, CompiledGraphs.of([graphs[run.graph_key]], run.conditions, run.software)) for run in runs
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: fit, and write the rates into the artefacts."""
    parser = argparse.ArgumentParser(description="Fit hosts and tensor cores on published measurements.")
    parser.add_argument("--folder", type=Path, default=PUBLISHED_FOLDER)
    parser.add_argument("--out", type=Path, default=ARTEFACT_FOLDER, help="folder of the artefacts to change")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    paths = {
        Mode.INFERENCE: options.out / ARTEFACT_PATH.name,
        Mode.TRAINING: options.out / TRAINING_ARTEFACT_PATH.name,
    }
    calibrations = {mode: Calibration.read(path) for mode, path in paths.items()}
    before = {mode: calibration.rates for mode, calibration in calibrations.items()}
    items, kernels = _read_items(options.folder), load_kernel_model()
    rates = fit_published_rates(items, before, kernels)
    errors = {
        name: round(100 * float(np.abs(np.expm1(log_errors(items, given, kernels))).mean()), 2)
        for name, given in (("before", before), ("after", rates))
    }
    provenance = {
        "command": "python -m dippm.training.published_rates",
        "data_sha256": digest_published(options.folder),
        "rows": len(items),
        "mape_percent": errors,
    }
    for mode, path in paths.items():
        calibration = calibrations[mode]
        replace(
            calibration, rates=rates[mode], provenance={**calibration.provenance, "published_rates": provenance}
        ).write(path)
    for regime in REGIMES:
        manifest = manifest_path(regime, options.out)
        if manifest.exists():
            artefact = AdditiveArtefact.read(manifest)
            feed = rates[Mode.INFERENCE].tensor_feed
            replace(artefact, rates=replace(artefact.rates, tensor_feed=feed)).write(manifest)
    sys.stdout.write(json.dumps(provenance, indent=1) + "\n")


if __name__ == "__main__":
    main()
