"""What `dippm train --adapt` would have done for the owner of an RTX 4090 before anyone had published a figure of it.

Usage: ``python scripts/check_adaptation.py GRAPHS ARRAYS NETWORKS OUT``, where GRAPHS is a graph cache filled by
``python -m dippm.training.additive``, ARRAYS a folder for arrays, and NETWORKS a folder of networks that were trained
without the device; where it has none they are trained, which takes about a quarter of an hour. The measured tables are
where ``DIPPM_DATA`` says.

The owner measures 60 rows of models that the networks know from another device. Tested is on all rows of the device
whose models are in no training. Prints the report of the adaptation, and errors and coverage on these rows, as JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

import numpy as np

from dippm.costs.conditions import Mode
from dippm.costs.rates import Rates
from dippm.devices import find_device
from dippm.features.physical import COLUMNS
from dippm.predictors.additive_artefact import AdditiveArtefact, Regime, manifest_path, read_tensors, write_tensors
from dippm.predictors.additive_novelty import Novelty
from dippm.training.adapt_device import adapt_device
from dippm.training.additive import additive_tensors, describe_errors, load_samples
from dippm.training.additive_fit import AdditiveSettings, fit_additive
from dippm.training.additive_labels import device_parts, random_parts
from dippm.training.additive_novelty import describe_samples, find_neighbours, fit_half_widths, with_half_widths
from dippm.training.additive_samples import AdditiveSamples
from dippm.training.additive_shipped import load_fitted

_DEVICE = "GeForce RTX 4090"
_ROWS = 60
_REGIME = Regime(mode=Mode.INFERENCE)
_SEED = 0


def main() -> None:
    """Adapt and test."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("graphs", "arrays", "networks", "out"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    cache, folder, networks, out = given.graphs, given.arrays, given.networks, given.out
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    # Rates as they are before any fit: the shipped ones have seen the device.
    samples, _ = load_samples(_REGIME, cache=cache, folder=folder, rates=Rates())
    _, pool, test = device_parts(samples, device=_DEVICE, seed=_SEED)
    if not manifest_path(_REGIME, networks).exists():
        _train_without(samples, networks)
    chosen = np.random.default_rng(_SEED).choice(pool, size=_ROWS, replace=False)
    labels = [samples.labels[position] for position in chosen]
    report = adapt_device(labels, find_device(_DEVICE), out, cache=cache, shipped=networks)
    answer = {"report": report.to_dict()}
    for name, where in (("before", networks), ("after", out)):
        answer[name] = _test(samples, test, where)
    sys.stdout.write(json.dumps(answer, indent=1) + "\n")


def _train_without(samples: AdditiveSamples, networks: Path) -> None:
    """Networks of the other devices, with intervals from the validation part of the models."""
    settings = AdditiveSettings(seed=_SEED)
    training, _, _ = device_parts(samples, device=_DEVICE, seed=_SEED)
    _, validation, _ = random_parts(samples, seed=_SEED)
    validation = np.array([i for i in validation if samples.labels[i].measurement.device != _DEVICE], dtype=np.int64)
    fitted = fit_additive(samples, training, settings)
    descriptors = describe_samples(samples, fitted.scale)
    neighbours = find_neighbours(descriptors, training)
    score = np.abs(np.log(fitted.predict_ms(samples, validation) / samples.measured_ms[validation]))
    curve = fit_half_widths(neighbours.distance(descriptors[validation]), score)
    known = [samples.labels[position] for position in training]
    path = manifest_path(_REGIME, networks)
    AdditiveArtefact(
        mode=_REGIME.mode,
        runtime=_REGIME.runtime,
        columns=COLUMNS,
        members=settings.members,
        rates=samples.rates,
        distances=tuple(curve[0].tolist()),
        half_widths=tuple(curve[1].tolist()),
        measured={
            "sources": sorted({label.source for label in known}),
            "devices": sorted({label.measurement.device for label in known}),
            "precisions": sorted({label.configuration.conditions.precision.value for label in known}),
            "layouts": sorted({label.configuration.conditions.layout.value for label in known}),
            "optimizers": [],
            "models": len({label.recipe.model_key for label in known}),
            "rows": len(known),
        },
        test={},
        settings={},
        provenance={},
    ).write(path)
    write_tensors(path, {**additive_tensors(fitted), **with_half_widths(neighbours, curve).tensors()})


def _test(samples: AdditiveSamples, test: np.ndarray, folder: Path) -> dict[str, float]:
    artefact, tensors = (read(manifest_path(_REGIME, folder)) for read in (AdditiveArtefact.read, read_tensors))
    fitted, samples = load_fitted(artefact, tensors), samples.reading(artefact.columns)
    novelty = Novelty.from_tensors(tensors, distances=artefact.distances, half_widths=artefact.half_widths)
    predicted, measured = fitted.predict_ms(samples, test), samples.measured_ms[test]
    width = novelty.half_width(novelty.distance(describe_samples(samples, fitted.scale)[test]))
    return {
        **describe_errors(predicted, measured),
        "interval_coverage_percent": round(100.0 * float((np.abs(np.log(predicted / measured)) <= width).mean()), 1),
        "median_half_width_percent": round(100.0 * float(np.expm1(np.median(width))), 1),
    }


if __name__ == "__main__":
    main()
