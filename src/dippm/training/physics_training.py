"""Fit predictor 0's rates and intervals of training steps on published measurements.

``python -m dippm.training.physics_training --cache FOLDER`` rebuilds the shipped artefact from the measured tables:
whole image models on an RTX 3090, amp, both layouts, SGD with momentum, PyTorch 1.12. Rates that a training step shares
with inference start at those of inference and may move, because another release of cuDNN was measured; what
:mod:`dippm.training.batch_norm_cycles` found stays. Division of the models and intervals are as in
:mod:`dippm.training.physics`. What was measured is one device: for others the
interval grows by as much as that of inference does on a device left out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from dippm.costs.conditions import Mode, Optimizer
from dippm.costs.kernel_plan import KernelPlan
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.precision import Precision
from dippm.costs.training_step.training_graph import Phase, TrainingSettings, make_training_graph
from dippm.costs.workload import Workload
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.location import data_folder
from dippm.datasets.software_graphs import software_of
from dippm.datasets.store.label import Label
from dippm.datasets.timm_tables import read_timm_tables
from dippm.graph import Graph
from dippm.predictors.calibration import TRAINING_ARTEFACT_PATH, Calibration
from dippm.training.physics import (
    conformal_quantile,
    describe_errors,
    divide,
    fit_rates,
    log_errors,
    read_items,
)

__all__ = ["main"]

_LOG = logging.getLogger(__name__)
# Lowest and highest value of every rate that is fitted; see the bounds of inference. A gradient of a weight may be
# faster than its convolution (no overhang of small outputs) and has been seen many times slower for depthwise ones.
_BOUNDS = {
    "tensor_gemm": (0.3, 1.0),
    "tensor_conv": (0.3, 1.0),
    "nchw_shuffle": (0.05, 2.0),
    "direct_conv": (0.02, 1.0),
    "direct_conv_nhwc": (0.02, 1.0),
    "stream": (0.5, 1.2),
    "norm": (0.5, 1.3),
    "move": (0.3, 1.2),
    "pool": (0.3, 1.2),
    "host_scale": (0.3, 2.0),
    "weight_gradient": (0.5, 3.0),
    "direct_weight_gradient": (0.5, 20.0),
}
# Image models that fill a card do not tell it: fitted on them it makes up for what is wrong elsewhere. Eager steps of
# small batches on an H200, which wait for the host, want 0.7 and more.
_BACKWARD_HOST = 0.7


def _lay_out(graph: Graph, label: Label) -> KernelPlan:
    precision = label.configuration.conditions.precision
    training = make_training_graph(graph, TrainingSettings(optimizer=Optimizer.MOMENTUM, precision=precision))
    work = Workload.from_graph(training.graph, training.precision)
    return KernelPlan.from_workload(
        work,
        is_backward=training.phase == Phase.BACKWARD,
        software=software_of(label.measurement.software.framework),
    )


def build(
    *,
    models: int,
    seed: int,
    evaluations: int,
    memory_spread: float,
    memory_spread_low: float,
    cache: Path,
    jobs: int,
) -> Calibration:
    """Run the whole fit.

    Args:
        models: Models drawn from the tables.
        seed: Seed of the draw and of the division.
        evaluations: Steps of the least-squares solver.
        memory_spread: How far the interval of ``log(predicted / measured)`` of the memory beside context, weights,
            gradients and state reaches upwards.
        memory_spread_low: How far it reaches downwards.
        cache: Folder of graphs; models that it lacks are read.
        jobs: Processes that read models.
    """
    inference = Calibration.read()
    unfitted = replace(inference.rates, backward_host=_BACKWARD_HOST)
    folder = data_folder() / "timm"
    kernels = load_kernel_model()
    rows = [row for row in read_timm_tables(folder) if row.mode == Mode.TRAINING.value]
    names = sorted({(row.model, row.image_size) for row in rows})
    random.Random(seed).shuffle(names)  # noqa: S311 - a draw of models, not a secret
    items = read_items(rows, names[:models], GraphCache(cache), jobs=jobs, lay_out=_lay_out)
    (fit, calibration, test), counts = divide(items)
    _LOG.info("fitting on %d rows", len(fit))
    start = asdict(unfitted)
    bounds = {name: (min(max(start[name], low), high), low, high) for name, (low, high) in _BOUNDS.items()}
    rates = fit_rates(fit, kernels, evaluations=evaluations, bounds=bounds, others=unfitted)
    spread = conformal_quantile(np.abs(log_errors(calibration, rates, kernels)))
    tested = log_errors(test, rates, kernels)
    elsewhere = spread * inference.latency_spread_elsewhere / inference.latency_spread
    margin = inference.context_margin_mb
    tables = sorted(folder.glob("benchmark-train-*.csv"))
    return Calibration(
        version=inference.version,
        rates=rates,
        power=inference.power,
        measured_devices=tuple(sorted({item.device.name for item in fit})),
        measured_precisions=(Precision.AMP.value,),
        latency_spread=round(spread, 4),
        latency_spread_elsewhere=round(elsewhere, 4),
        power_spread=inference.power_spread,
        memory_spread=memory_spread,
        memory_spread_low=memory_spread_low,
        context_margin_mb=margin,
        context_margin_high_mb=inference.context_margin_high_mb,
        labels=(
            "timm benchmark tables: training steps of image models on RTX 3090, SGD with momentum, amp, PyTorch 1.12, "
            "CUDA 11.3; memory by which of their batches fitted 24 GB; kernels on A100, V100, T4, P100, P4, FP32, "
            "PyTorch 2.1, CUDA 12.1"
        ),
        provenance={
            "command": (
                f"python -m dippm.training.physics_training --models {models} --seed {seed} "
                f"--evaluations {evaluations} --memory-spread {memory_spread} "
                f"--memory-spread-low {memory_spread_low} --cache FOLDER"
            ),
            "seed": seed,
            "data_sha256": hashlib.sha256(b"".join(path.read_bytes() for path in tables)).hexdigest(),
            "models": counts,
            "untrained_rates": describe_errors(log_errors(test, unfitted, kernels)),
            "fit": describe_errors(log_errors(fit, rates, kernels)),
            "test": describe_errors(tested),
            "test_interval_coverage_percent": round(100 * float(np.mean(np.abs(tested) <= spread)), 1),
            "memory_spread": "by how much more, and less, a step may need: python -m dippm.evaluation.training_fits",
        },
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: fit, write the artefact, print its provenance."""
    parser = argparse.ArgumentParser(description="Fit predictor 0's training steps on the measured tables.")
    parser.add_argument("--models", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluations", type=int, default=8)
    parser.add_argument("--memory-spread", type=float, default=0.044, help="see dippm.evaluation.training_fits")
    parser.add_argument("--memory-spread-low", type=float, default=0.002, help="see dippm.evaluation.training_fits")
    parser.add_argument("--cache", type=Path, required=True, help="folder of graphs, filled where it lacks models")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=TRAINING_ARTEFACT_PATH)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    calibration = build(
        models=options.models,
        seed=options.seed,
        evaluations=options.evaluations,
        memory_spread=options.memory_spread,
        memory_spread_low=options.memory_spread_low,
        cache=options.cache,
        jobs=options.jobs,
    )
    calibration.write(options.out)
    sys.stdout.write(json.dumps(asdict(calibration), indent=1) + "\n")


if __name__ == "__main__":
    main()
