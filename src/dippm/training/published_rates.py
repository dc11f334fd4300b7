"""Fit what only other machines can tell: how fast hosts are, and what full-rate tensor cores reach of their peak.

``python -m dippm.training.published_rates`` reads ``data/published`` and changes, in the artefacts that
:mod:`dippm.training.physics`, :mod:`dippm.training.physics_training` and :mod:`dippm.training.additive` have written,

- ``host_scale`` of inference and that of training steps, and ``convolution_host``;
- ``tensor_feed``, see :class:`~dippm.costs.rates.Rates`. It leaves GeForce cards as they are, on which all other rates
  and the networks were fitted.

Only models of ``FITTED_MODELS`` are fitted on, by the plain sum, and not under autocast, where the networks answer.
Each machine counts alike in each mode, however many rows it has. Hosts differ: each machine has a host time of its own,
and the middle of all is kept. A machine is one observation of it: its own time is drawn to the middle as a measurement
that is a tenth off would be, by how far hosts lie apart. What no row tells stays as it was.
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
# Start, lowest and highest value: feeding of tensor cores, host of convolutions, hosts. None starts at 1: the solver
# steps in proportion to the logarithm.
_FEED, _CONVOLUTION, _HOST = (1.5, 0.05, 10.0), (1.2, 0.5, 3.0), (0.8, 0.2, 4.0)
# Rates of all machines, ahead of the hosts in what is solved for.
_SHARED = ("tensor_feed", "convolution_host")
_MODES = (Mode.INFERENCE, Mode.TRAINING)
# Spread of the logarithm of the hosts' times about their middle, assumed; machines whose rows tell it are found from
# 0.8 to 1.2.
_SPREAD = 0.3
# Of the logarithm of a time by that of a rate: below it no row tells the rate.
_LEAST_SLOPE = 0.01
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
    hosts = [(item.run.machine, item.run.conditions.mode) for item in items]
    counts = Counter(hosts)
    machines = list(counts)
    weights = np.array([counts[host] ** -0.5 for host in hosts])
    bounds = [_FEED, _CONVOLUTION, *[_HOST] * (len(_MODES) + len(machines))]
    start, low, high = (np.log([bound[place] for bound in bounds]) for place in range(3))
    mode_of = np.array([_MODES.index(mode) for _, mode in machines])
    machine_of = np.array([machines.index(host) for host in hosts])

    def changed(values: FloatArray, host: FloatArray) -> RatesOfMode:
        shared = dict(zip(_SHARED, values.tolist(), strict=False))
        return {
            mode: replace(rates[mode], host_scale=scale, **shared)
            for mode, scale in zip(_MODES, host.tolist(), strict=True)
        }

    def residuals(logarithms: FloatArray) -> FloatArray:
        values, middle, own = np.exp(logarithms), *np.split(logarithms[len(_SHARED) :], [len(_MODES)])
        each = [changed(values, np.full(len(_MODES), np.exp(scale))) for scale in own.tolist()]
        errors = np.concatenate(
            [log_errors([item], each[m], kernels) for item, m in zip(items, machine_of, strict=True)]
        )
        _LOG.info("  mean |log error| %.4f", float(np.mean(np.abs(errors))))
        # Large errors count less, row by row, before a machine's rows are averaged.
        tempered = np.sign(errors) * _SOFT * np.sqrt(2.0 * (np.hypot(1.0, errors / _SOFT) - 1.0))
        return np.concatenate([weights * tempered, (own - middle[mode_of]) * (_SOFT / _SPREAD)])

    # A row hangs on its own machine alone: one run tells the gradients for all machines.
    depends = np.zeros((len(items) + len(machines), len(bounds)), dtype=np.int8)
    own_hosts = len(_SHARED) + len(_MODES)
    depends[: len(items), : len(_SHARED)] = 1
    depends[np.arange(len(items)), own_hosts + machine_of] = 1
    depends[len(items) + np.arange(len(machines)), own_hosts + np.arange(len(machines))] = 1
    depends[len(items) + np.arange(len(machines)), len(_SHARED) + mode_of] = 1
    solution = least_squares(residuals, start, bounds=(low, high), diff_step=_STEP, jac_sparsity=depends)
    for (machine, mode), scale in zip(machines, np.exp(solution.x[own_hosts:]).tolist(), strict=True):
        _LOG.info("  %s, %s: %.2f", machine, mode.value, scale)
    slopes = np.linalg.norm(solution.jac.toarray()[: len(items)], axis=0)
    tells = slopes[own_hosts:] > _LEAST_SLOPE
    is_told = [
        *(slopes[: len(_SHARED)] > _LEAST_SLOPE),
        *(bool(tells[mode_of == mode].any()) for mode in range(len(_MODES))),
    ]
    before = [
        *(getattr(rates[Mode.INFERENCE], name) for name in _SHARED),
        *(rates[mode].host_scale for mode in _MODES),
    ]  # fmt: skip
    after = np.exp(solution.x[:own_hosts]).tolist()
    kept = [float(f"{new:.4g}") if told else old for new, old, told in zip(after, before, is_told, strict=True)]
    return changed(np.array(kept), np.array(kept[len(_SHARED) :]))


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
        # They are there to be predicted.
        and run.conditions.adapters is None
        and not run.is_quantised
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
