"""Fit how long a layer norm takes for a narrow row.

``python -m dippm.training.row_cycles`` reads the measured kernel tables and changes ``row_cycles`` of the plain sum
(see :class:`~dippm.costs.rates.Rates`) in the artefacts that :mod:`dippm.training.physics` and
:mod:`dippm.training.physics_training` have written. :mod:`dippm.training.published_rates` comes after it.

PyTorch's kernel runs a block of threads for each row. In the tables' narrowest rows, of 260 to 400 elements, most of a
row's time does not depend on its width, and the network that was trained on them does not know that for the rows of a
fourth of that width which images have. The networks of :mod:`dippm.training.additive` learn it from whole models; what
they make of ConvNeXt and Swin on an RTX 3090 comes to 120 to 200 cycles.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dippm.costs.kernels.problems import Family
from dippm.datasets.kernels import KernelRows, load_family
from dippm.devices import find_device
from dippm.predictors.additive_artefact import ARTEFACT_FOLDER
from dippm.predictors.calibration import ARTEFACT_PATH, TRAINING_ARTEFACT_PATH, Calibration
from dippm.units import MEGA

__all__ = ["fit_row_cycles", "main"]

# Rows so narrow, and so many of them that a call's launch is a small part of its time.
_NARROW, _MANY = 400, 4000
# The median is that of devices from here on: older ones take twice as long.
_FROM = (7, 0)


def fit_row_cycles(rows: KernelRows) -> tuple[float, dict[str, float]]:
    """Cycles of a multiprocessor for each row of a layer norm, the part that does not depend on its width.

    Args:
        rows: Measured layer norms.

    Returns:
        The median of the devices with tensor cores, and that of each by its name.
    """
    count, width = rows.shape[:, 0].astype(np.float64), rows.shape[:, 1].astype(np.float64)
    cycles, recent = {}, []
    for name in np.unique(rows.device).tolist():
        chosen = (rows.device == name) & (width <= _NARROW) & (count >= _MANY)
        # A launch, a time for each row, a time for each element.
        terms = np.stack([np.ones(chosen.sum()), count[chosen], (count * width)[chosen]], axis=1)
        (_, row_ms, _), *_ = np.linalg.lstsq(terms, rows.time_ms[chosen], rcond=None)
        device = find_device(name)
        cycles[name] = round(float(row_ms) / 1e3 * device.sm_count * device.boost_clock_mhz * MEGA, 1)
        if device.compute_capability >= _FROM:
            recent.append(cycles[name])
    return float(np.median(recent)), cycles


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: fit, write the artefacts, print what each device gives."""
    parser = argparse.ArgumentParser(description="Fit the time of narrow rows of layer norms.")
    parser.add_argument("--data", type=Path, default=None, help="folder with kernels/ in it")
    parser.add_argument("--out", type=Path, default=ARTEFACT_FOLDER, help="folder of the artefacts to change")
    options = parser.parse_args(arguments)
    rows = load_family(Family.LAYER_NORM, data=options.data)
    row_cycles, of_devices = fit_row_cycles(rows)
    provenance = {
        "command": "python -m dippm.training.row_cycles",
        "data_sha256": rows.data_hash,
        "cycles": of_devices,
    }
    for name in (ARTEFACT_PATH.name, TRAINING_ARTEFACT_PATH.name):
        calibration = Calibration.read(options.out / name)
        replace(
            calibration,
            rates=replace(calibration.rates, row_cycles=row_cycles),
            provenance={**calibration.provenance, "row_cycles": provenance},
        ).write(options.out / name)
    sys.stdout.write(json.dumps(provenance, indent=1) + "\n")


if __name__ == "__main__":
    main()
