"""What kernels of images reach on an architecture that the project measured itself.

``python -m dippm.training.architecture --labels data/labels/h200/labels.parquet --cache graphs``, after all other
trainings, fits some of the shares of :class:`~dippm.costs.rates.Rates` on labels of one GPU, and writes them into the
shipped calibrations as the rates of its compute capability:

1. *Rows*: inference in amp and FP32 in NCHW, eager calls which scatter so little that the device never waits for the
   host, and the captured calls of every fourth model.
2. *Fit*: the plain sum's errors of the logarithm, those beyond a tenth by their size, not by its square; weakly drawn
   to where the search begins.
3. *Test*: models, and families, in five parts, each predicted by rates that were fitted on the others. The half-width
   that holds 90 % of the families' rows is the interval's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from dippm.costs.conditions import Conditions, Layout, Mode, Runtime
from dippm.costs.device_time import busy_ms
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.kernels.model import KernelModel, load_kernel_model
from dippm.costs.precision import Precision
from dippm.costs.rates import Rates, architecture_of
from dippm.costs.workload import Workload, WorkloadAt
from dippm.datasets.graph_cache import GraphCache, build_graphs
from dippm.datasets.selection import is_steady
from dippm.datasets.software_graphs import as_measured, software_of
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import read_parquet
from dippm.devices import DeviceSpec, find_device
from dippm.evaluation.own_labels import choose_labels
from dippm.measuring.measurement import Outcome
from dippm.predictors.calibration import ARTEFACT_PATH, TRAINING_ARTEFACT_PATH, Calibration
from dippm.training.additive import describe_errors
from dippm.training.physics import TRACED_EVERYWHERE

__all__ = ["FITTED", "HEIRS", "TRACED", "Row", "fit_architecture", "main", "predict_ms", "read_rows"]

_LOG = logging.getLogger(__name__)

FloatArray = npt.NDArray[np.float64]
NameArray = npt.NDArray[np.str_]

#: Shares that the labels tell of, with where the search for each begins.
FITTED = {
    "tensor_conv": 0.6,
    "nchw_shuffle": 3.0,
    "direct_conv": 0.5,
    "own_depthwise": 0.03,
    "norm": 0.75,
    "move": 0.7,
    "group_norm_cycles": 0.5,
}
#: Rates that were read off traces. ReLUs and additions in place take 1.22 microseconds on an H100 and 1.05 on an H200,
#: half a microsecond more to the next kernel, and a clock of each multiprocessor for 21 and 22 bytes while what they
#: move fits the L2 cache, which is 24 where 0.9 of everything is reached; beyond it they reach 0.91 and 0.87 of the
#: bandwidth. Few labels tell of the others: bilinear resizings of 384 to 131,072 planes have 360 to 400 cycles for each
#: where they move 4 and 8 MB, and 670 to 830 where they move 44 to 177 (said to be 590 to 680); eleven shapes of split
#: depthwise convolutions have 3.4 to 4 microseconds for a group with 9 taps and 5.3 to 5.9 with 49, where it is
#: small. Cycles of elements are the same on both cards: batch norms of inference take 0.26 to 0.35 beside the time of
#: their bytes, products with an operand that is spread 0.22 to 0.39; the largest values of windows of four and of nine
#: take 3.2 and 4.3, their means 3.1 and 3.4. Cycles of a group norm's statistics hold what reading for them takes.
#: Concatenations of whole vectors reach 0.85 of the bandwidth and padding 0.87, where ReLUs reach 0.86 to 0.9; the
#: others take 1.17 to 1.25 cycles for each element on both cards, in 16 bits and in 32. A block of a concatenation
#: takes 150 to 165 cycles in the medians of 2,500 that have twelve operands and more. A term of a convolution at the
#: head of a VGG that runs outside of tensor cores takes 240 cycles in the median of 69 (see head_convolutions.py).
#: Groups of split convolutions run up to five times faster side by side in 50 captured calls (split_convolutions.py).
TRACED = {
    **TRACED_EVERYWHERE,
    "gap_us": 1.65,
    "stream": 0.9,
    "cache_bytes_per_cycle": 24.0,
    "element_cycles": 0.33,
    "plane_cycles": 340.0,
    "group_kernel_us": 2.75,
    "side_by_side": 5.0,
    "head_cycles": 240.0,
    "group_norm_reads": 1.0,
}
# Architectures that are taken to do as one that was measured: the one after Hopper for servers, whose tensor cores
# outrun memory as far. With rates of older cards a B200 would be three times as fast as an H200; of it nothing was
# measured.
HEIRS = {"9.0": ("10.0", "10.3")}
_PRECISIONS = (Precision.AMP, Precision.AMP_BF16, Precision.FP32)
_CAPTURED_EVERY = 4
_READS_OF_A_GROUP_NORM = 2.0
_PARTS = 5
_PULL = 0.02
_LARGE_ERROR = 0.1
_EVALUATIONS = 14


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Row:
    """One configuration that tells of the device alone.

    Args:
        label: What was measured.
        plan: The kernels that ran.
        at: Their work at the batch.
    """

    label: Label
    plan: KernelPlan
    at: WorkloadAt

    @property
    def conditions(self) -> Conditions:
        """How it was run."""
        return self.label.configuration.conditions

    @property
    def measured_ms(self) -> float:
        """Its time."""
        return self.label.measurement.latency_ms or float("nan")


def read_rows(labels: Sequence[Label], cache: GraphCache) -> list[Row]:
    """Rows to fit on, each configuration once."""
    rows = []
    for label in labels:
        conditions, measurement = label.configuration.conditions, label.measurement
        is_chosen = (
            label.repeat == 0
            and measurement.outcome is Outcome.OK
            and conditions.mode is Mode.INFERENCE
            and conditions.precision in _PRECISIONS
            and conditions.layout is Layout.NCHW
            and _is_of_device(label)
        )
        cached = cache.load(label.recipe.model_key, batch=label.recipe.batch) if is_chosen else None
        if cached is not None:
            software, graph = software_of(measurement.software.framework), as_measured(cached.graph, label)
            work = Workload.from_graph(graph, conditions.precision, keeps_casts=software.keeps_casts)
            plan = KernelPlan.from_workload(work, software=software)
            rows.append(Row(label=label, plan=plan, at=plan.work.at([label.recipe.batch])))
    return rows


def _is_of_device(label: Label) -> bool:
    """Whether its time is that of the device; of captured calls, which are many, few models stand for all."""
    runtime = label.configuration.conditions.runtime
    if runtime is Runtime.CUDA_GRAPH:
        return int(label.recipe.model_key, 16) % _CAPTURED_EVERY == 0
    return runtime is Runtime.EAGER and bool(is_steady(label.measurement))


def predict_ms(rows: Sequence[Row], device: DeviceSpec, rates: Rates, kernels: KernelModel) -> FloatArray:
    """Time for which the plain sum says that each row keeps the device busy, [len(rows)]."""
    return np.array(
        [
            busy_ms(row.plan, row.at, devices=[device], conditions=row.conditions, rates=rates, kernels=kernels).sum()
            for row in rows
        ]
    )


def fit_architecture(rows: Sequence[Row], device: DeviceSpec, rates: Rates, kernels: KernelModel) -> dict[str, float]:
    """Fit the rates of an architecture.

    Args:
        rows: Rows of one device.
        device: The device.
        rates: Rates whose other shares stay as they are; none of an architecture's own.
        kernels: Learned kernel times.
    """
    measured = np.log([row.measured_ms for row in rows])
    start = np.log(list(FITTED.values()))
    pull = _PULL * np.sqrt(len(rows))

    def errors(point: FloatArray) -> FloatArray:
        own = rates.changed(TRACED | dict(zip(FITTED, np.exp(point).tolist(), strict=True)))
        return np.concatenate([np.log(predict_ms(rows, device, own, kernels)) - measured, pull * (point - start)])

    found = least_squares(errors, start, loss="soft_l1", f_scale=_LARGE_ERROR, diff_step=0.05, max_nfev=_EVALUATIONS)
    fitted = {name: float(f"{value:.4g}") for name, value in zip(FITTED, np.exp(found.x).tolist(), strict=True)}
    return fitted | TRACED


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: fit, test, write the calibrations, print errors."""
    parser = argparse.ArgumentParser(description="Fit rates of an architecture on labels of the project's own.")
    parser.add_argument("--labels", type=Path, required=True, help="Parquet file of labels of one GPU")
    parser.add_argument("--cache", type=Path, default=Path("dippm-trained/graphs"), help="folder of graphs")
    parser.add_argument("--jobs", type=int, default=1, help="processes that read models which the cache lacks")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    labels, cache = choose_labels(read_parquet(options.labels)), GraphCache(options.cache)
    device = find_device(labels[0].measurement.device)
    build_graphs((label.recipe for label in labels), cache, jobs=options.jobs)
    rows, kernels = read_rows(labels, cache), load_kernel_model()
    before = replace(Calibration.read().rates, measured={})
    measured = np.array([row.measured_ms for row in rows])
    report: dict[str, object] = {
        "labels": str(options.labels),
        "labels_sha256": hashlib.sha256(options.labels.read_bytes()).hexdigest(),
        "device": device.name,
        "precisions": sorted({row.conditions.precision.value for row in rows}),
        "before": describe_errors(predict_ms(rows, device, before, kernels), measured),
    }
    splits = {
        "models left out": np.array([row.label.recipe.model_key for row in rows]),
        "families left out": np.array([row.label.recipe.lineage for row in rows]),
    }
    scores = np.zeros(len(rows))
    for split, names in splits.items():
        held = _predict_left_out(rows, names, device, before, kernels)
        report[split] = describe_errors(held, measured)
        _LOG.info("%s: %s", split, report[split])
        scores = np.abs(np.log(held / measured))
    rank = min(int(np.ceil(0.9 * (len(scores) + 1))), len(scores))
    half_width = round(float(np.sort(scores)[rank - 1]), 4)
    own = fit_architecture(rows, device, before, kernels)
    report |= {"half_width": half_width, "rates": own}
    name = architecture_of(device)
    holds_for = (name, *HEIRS.get(name, ()))
    for path in (ARTEFACT_PATH, TRAINING_ARTEFACT_PATH):
        calibration = Calibration.read(path)
        replace(
            calibration,
            # PyTorch's kernel for planes is the same on every card, and waits for itself. Group norms take their
            # statistics first on every card, and where nothing tells how fast, as fast as they can be read.
            rates=replace(
                calibration.rates,
                plane_cycles=TRACED["plane_cycles"],
                group_norm_reads=_READS_OF_A_GROUP_NORM,
                measured={**calibration.rates.measured, **dict.fromkeys(holds_for, own)},
            ),
            architectures={**calibration.architectures, **dict.fromkeys(holds_for, report)},
        ).write(path)
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


def _predict_left_out(
    rows: Sequence[Row], names: NameArray, device: DeviceSpec, rates: Rates, kernels: KernelModel
) -> FloatArray:
    """Each row by rates that were fitted without its name, in five parts of about equally many names."""
    drawn = sorted(set(names.tolist()), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    part = np.array([drawn.index(name) % _PARTS for name in names.tolist()])
    result = np.zeros(len(rows))
    for number in range(_PARTS):
        known = [row for row, own in zip(rows, part.tolist(), strict=True) if own != number]
        unknown = [row for row, own in zip(rows, part.tolist(), strict=True) if own == number]
        own_rates = rates.changed(fit_architecture(known, device, rates, kernels))
        result[part == number] = predict_ms(unknown, device, own_rates, kernels)
    return result


if __name__ == "__main__":
    main()
