"""How long the block of a channel takes for a batch norm's statistics, from traced training steps.

``python -m dippm.training.batch_norm_cycles --labels data/labels/h200/labels.parquet --traces
data/labels/h200/traces.parquet`` changes ``batch_norm_cycles`` (see :class:`~dippm.costs.rates.Rates`) in the artefact
that :mod:`dippm.training.physics` has written, which :mod:`dippm.training.physics_training` and the networks start
from.

cuDNN and PyTorch give each channel of an image in NCHW one block of threads. Going over the channel again for what it
needs twice, the block takes about a cycle for an element, whatever the bandwidth, two in the gradient, which reads
two images, and twice as long in BF16, which runs PyTorch's own kernels. cuDNN has other kernels for channels that
fit a multiprocessor; those are left out here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dippm.costs.conditions import Mode
from dippm.costs.extra_work import BF16_CHANNEL, GRADIENT_CHANNEL
from dippm.costs.precision import Precision
from dippm.datasets.store.label import Label
from dippm.datasets.store.parquet import read_parquet
from dippm.datasets.store.traces import read_traces
from dippm.devices import find_device
from dippm.errors import UsageError
from dippm.measuring.operator_run import OperatorRun
from dippm.predictors.additive_artefact import ARTEFACT_FOLDER
from dippm.predictors.calibration import ARTEFACT_PATH, Calibration

__all__ = ["fit_batch_norm_cycles", "main"]

_IMAGE_RANK = 4
# Elements of a channel from which on its block is never done before its launch is.
_FROM_ELEMENTS = 1 << 14
# Part of the names of cuDNN's kernels that hold a channel while they work on it.
_HELD = "singleread"


def fit_batch_norm_cycles(labels: Iterable[Label], traces: Mapping[str, Sequence[OperatorRun]]) -> float:
    """Cycles of a multiprocessor for each element of a channel, as in :class:`~dippm.costs.rates.Rates`.

    Each precision and direction counts the same, however many of its kernels were traced. They lie from 0.85 to 1.04 on
    an H200.

    Args:
        labels: Labels; traced training steps among them are read.
        traces: The operators of each traced label, by its key.

    Returns:
        The median of the medians of all kinds; 0 where no batch norm was traced.
    """
    found: dict[tuple[Precision, bool], list[float]] = defaultdict(list)
    for label in labels:
        conditions = label.configuration.conditions
        if conditions.mode is Mode.TRAINING:
            for is_backward, cycles in _cycles_of_step(label, traces.get(label.key, ())):
                found[conditions.precision, is_backward].append(cycles)
    medians = [float(np.median(cycles)) for cycles in found.values()]
    return round(float(np.median(medians)), 2) if medians else 0.0


def _cycles_of_step(label: Label, runs: Sequence[OperatorRun]) -> Iterator[tuple[bool, float]]:
    device = find_device(label.measurement.device)
    slower = BF16_CHANNEL if label.configuration.conditions.precision is Precision.AMP_BF16 else 1.0
    for run in runs:
        if "batch_norm" not in run.name or any(_HELD in kernel.name for kernel in run.kernels):
            continue
        shape = run.input_shapes[0] if run.input_shapes else ()
        if len(shape) != _IMAGE_RANK:
            continue
        batch, channels, height, width = shape
        elements = batch * height * width
        if elements < _FROM_ELEMENTS:
            continue
        work = math.ceil(channels / device.sm_count) * elements * slower
        work *= GRADIENT_CHANNEL if run.is_backward else 1.0
        yield run.is_backward, run.duration_us * device.boost_clock_mhz / work


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: fit, write the artefact, print what was found."""
    parser = argparse.ArgumentParser(description="Fit the time of a channel's block in a batch norm.")
    parser.add_argument("--labels", type=Path, required=True, help="Parquet file of labels of one GPU")
    parser.add_argument("--traces", type=Path, required=True, help="Parquet file of their traces")
    parser.add_argument("--out", type=Path, default=ARTEFACT_FOLDER, help="folder of the artefact to change")
    options = parser.parse_args(arguments)
    cycles = fit_batch_norm_cycles(read_parquet(options.labels), read_traces(options.traces))
    if not cycles:
        raise UsageError(
            f"No training step that was traced in {options.traces} has a batch norm of images in NCHW.",
            code="labels.none",
            cure="Name the labels and the traces of one campaign, such as data/labels/h200/labels.parquet.",
        )
    provenance = {
        "command": f"python -m dippm.training.batch_norm_cycles --labels {options.labels} --traces {options.traces}",
        "data_sha256": hashlib.sha256(options.labels.read_bytes() + options.traces.read_bytes()).hexdigest(),
        "cycles": cycles,
    }
    path = options.out / ARTEFACT_PATH.name
    calibration = Calibration.read(path)
    replace(
        calibration,
        rates=replace(calibration.rates, batch_norm_cycles=cycles),
        provenance={**calibration.provenance, "batch_norm_cycles": provenance},
    ).write(path)
    sys.stdout.write(json.dumps(provenance, indent=1) + "\n")


if __name__ == "__main__":
    main()
