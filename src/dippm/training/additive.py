"""Train the additive predictor on published measurements of whole models.

``python -m dippm.training.additive --mode training --cache graphs`` rebuilds the shipped artefact of a mode from the
measured tables:

1. *Labels*: image models in inference (RTX 3090 and RTX 4090, PyTorch 2.4; compiled on the RTX 4090 alone), or in
   training (RTX 3090, PyTorch 1.12), amp, both layouts. Graphs are read into the cache where it lacks them; what is no
   longer the model that was measured is left out.
2. *Plain times*: predictor 0 with its fitted rates.
3. *Parts*: 80/10/10 at random by model.
4. *Networks*: some members on the training part; their times are averaged.
5. *Interval*: split conformal prediction, by the distance from what was trained on, on families that were left out in
   turn and on the validation part. Errors and coverage are those of the test part.

Graphs are kept by the names of the models: after a change of a reader, begin with an empty folder of graphs. Features
and fits are made again where a cost rule has changed.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dippm.costs.conditions import Mode, Runtime
from dippm.costs.rates import Rates
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.label_graphs import build_label_graphs
from dippm.datasets.location import data_folder
from dippm.datasets.store.label import Label
from dippm.features.physical import COLUMNS
from dippm.predictors.additive_artefact import ARTEFACT_FOLDER, AdditiveArtefact, Regime, manifest_path, write_tensors
from dippm.training.additive_fit import AdditiveSettings, FittedAdditive, fit_additive
from dippm.training.additive_labels import random_parts, read_measured_models
from dippm.training.additive_novelty import describe_samples, find_neighbours, fit_half_widths, with_half_widths
from dippm.training.additive_protocol import HeldOut, predict_families, with_layers
from dippm.training.additive_samples import AdditiveSamples, build_additive_samples
from dippm.training.versions import find_versions

__all__ = [
    "FOLDS",
    "additive_settings",
    "additive_tensors",
    "describe_errors",
    "load_samples",
    "main",
    "pooled",
    "train_additive",
]

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.int64]

_LOG = logging.getLogger(__name__)

#: Groups of families, each left out once.
FOLDS = 5

# By which powers of two sizes can be divided, but for those that decide between kernels of tensor cores: in the table
# of training, of one card, the channels of image models tell a family by them, and networks that see them are 7.5 % off
# on families that were left out, where they are else 6.9 %.
_TELL_FAMILIES = tuple(
    f"{size}_by_{divisor}"
    for size, divisors in (("in_channels", (2, 4, 16, 128)), ("out_channels", (2, 4, 16, 128)), ("pixels", (2, 4, 8)))
    for divisor in divisors
)


def additive_settings(mode: Mode, *, members: int, epochs: int, seed: int = 0) -> AdditiveSettings:
    """Settings of the networks of a mode.

    Args:
        mode: The mode.
        members: Networks whose times are averaged.
        epochs: Passes over the samples.
        seed: Seed of the first network, and of the draw of models.
    """
    passed_over = _TELL_FAMILIES if mode is Mode.TRAINING else ()
    return AdditiveSettings(members=members, epochs=epochs, seed=seed, passed_over=passed_over)


def load_samples(
    regime: Regime, *, cache: Path, folder: Path, jobs: int = 1, rates: Rates | None = None
) -> tuple[AdditiveSamples, str]:
    """The measured models as samples, and the hash of their tables.

    Args:
        regime: What was measured.
        cache: Folder of the graph cache; graphs that it lacks are read.
        folder: Where the arrays are kept.
        jobs: Processes that read graphs.
        rates: Sustained rates of the plain sum; the shipped ones where None are given.
    """
    measured = read_measured_models(data_folder(), regime.mode, regime.runtime)
    for failure in build_label_graphs(measured.labels, GraphCache(cache), jobs=jobs):
        _LOG.warning("left out %s: %s", failure.recipe.architecture, failure.reason)
    samples = build_additive_samples(
        measured.labels, cache=cache, folder=folder, parameters_m=measured.parameters_m, rates=rates
    )
    return samples, measured.data_sha256


def describe_errors(predicted_ms: FloatArray, measured_ms: FloatArray) -> dict[str, float]:
    """Number of rows, mean, median and 90 % quantile of the absolute percentage error."""
    errors = 100.0 * np.abs(predicted_ms / measured_ms - 1.0)
    return {
        "rows": len(errors),
        "mape_percent": round(float(errors.mean()), 2),
        "median_ape_percent": round(float(np.median(errors)), 2),
        "ape_percent_90": round(float(np.quantile(errors, 0.9)), 2),
    }


def pooled(
    samples: AdditiveSamples, held: Sequence[HeldOut], *, without: IndexArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Distances and scores of all tested rows.

    Args:
        samples: All samples.
        held: Predictions.
        without: Rows that are not to be used.

    Returns:
        Distances, and ``|log(measured / predicted)|``.
    """
    rows = np.concatenate([part.test for part in held])
    distance = np.concatenate([part.test_distance for part in held])
    score = np.abs(np.log(np.concatenate([part.test_ms for part in held]) / samples.measured_ms[rows]))
    if without is not None:
        is_used = ~np.isin(rows, without)
        distance, score = distance[is_used], score[is_used]
    return distance, score


def train_additive(
    samples: AdditiveSamples,
    settings: AdditiveSettings,
    left_out: Sequence[HeldOut],
    *,
    data_sha256: str,
    command: str,
) -> tuple[AdditiveArtefact, dict[str, npt.NDArray[np.float32]]]:
    """Fit, calibrate and test.

    Args:
        samples: All samples.
        settings: Settings; their seed also draws the parts.
        left_out: Predictions of families or models that were left out, which the interval is calibrated on.
        data_sha256: Hash of the measured tables.
        command: The command line, for the record.

    Returns:
        The manifest, and the weights by name.
    """
    training, validation, test = random_parts(samples, seed=settings.seed)
    learnt = with_layers(samples, training, np.concatenate([validation, test]))
    fitted = fit_additive(samples, learnt, settings)
    descriptors = describe_samples(samples, fitted.scale)
    neighbours = find_neighbours(descriptors, training)
    validation_score = np.abs(np.log(fitted.predict_ms(samples, validation) / samples.measured_ms[validation]))
    distance, score = pooled(samples, left_out, without=test)
    curve = fit_half_widths(
        np.concatenate([distance, neighbours.distance(descriptors[validation])]),
        np.concatenate([score, validation_score]),
    )
    novelty = with_half_widths(neighbours, curve)
    predicted, measured = fitted.predict_ms(samples, test), samples.measured_ms[test]
    width = novelty.half_width(novelty.distance(descriptors[test]))
    is_inside = np.abs(np.log(predicted / measured)) <= width
    regime = samples.labels[0].configuration.conditions
    artefact = AdditiveArtefact(
        mode=regime.mode,
        runtime=regime.runtime,
        columns=COLUMNS,
        members=settings.members,
        rates=samples.rates,
        distances=tuple(np.round(curve[0], 4).tolist()),
        half_widths=tuple(np.round(curve[1], 4).tolist()),
        measured=_describe_labels([samples.labels[position] for position in samples.usable]),
        test={
            **describe_errors(predicted, measured),
            "interval_coverage_percent": round(100.0 * float(is_inside.mean()), 1),
            "median_half_width_percent": round(100.0 * float(np.expm1(np.median(width))), 1),
        },
        settings=asdict(settings),
        provenance={
            "command": command,
            "data_sha256": data_sha256,
            "samples": samples.key,
            "rows": {
                "training": len(training),
                "layers": len(learnt) - len(training),
                "validation": len(validation),
                "test": len(test),
            },
            "versions": find_versions(),
        },
    )
    return artefact, {**additive_tensors(fitted), **novelty.tensors()}


def additive_tensors(fitted: FittedAdditive) -> dict[str, npt.NDArray[np.float32]]:
    """Weights of all members and the scale of the features, by the names of the artefact."""
    scale = fitted.scale
    tensors = {"scale.mean": scale.mean, "scale.factor": scale.factor, **scale.ramps.tensors()}
    for member, network in enumerate(fitted.members):
        for name, values in network.state_dict().items():
            tensors[f"member{member}.{name}"] = values.numpy().astype(np.float32)
    return tensors if fitted.convolutions is None else tensors | fitted.convolutions.tensors()


def _describe_labels(labels: Sequence[Label]) -> dict[str, Any]:
    conditions = [label.configuration.conditions for label in labels]
    return {
        "sources": sorted({label.source for label in labels}),
        "devices": sorted({label.measurement.device for label in labels}),
        "precisions": sorted({each.precision.value for each in conditions}),
        "layouts": sorted({each.layout.value for each in conditions}),
        "optimizers": sorted({each.optimizer.value for each in conditions if each.optimizer is not None}),
        "models": len({label.recipe.model_key for label in labels}),
        "rows": len(labels),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: fit, write the artefact, print its errors."""
    defaults = AdditiveSettings()
    parser = argparse.ArgumentParser(description="Train the additive predictor on the measured tables.")
    parser.add_argument("--mode", type=Mode, choices=list(Mode), required=True)
    parser.add_argument("--runtime", type=Runtime, choices=[Runtime.EAGER, Runtime.COMPILE], default=Runtime.EAGER)
    parser.add_argument("--cache", type=Path, default=Path("dippm-trained/graphs"), help="folder of graphs")
    parser.add_argument("--folder", type=Path, default=Path("dippm-trained/additive"), help="folder of arrays and fits")
    parser.add_argument("--jobs", type=int, default=1, help="processes that read models which the cache lacks")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--members", type=int, default=defaults.members)
    parser.add_argument("--epochs", type=int, default=defaults.epochs)
    parser.add_argument("--out", type=Path, default=ARTEFACT_FOLDER, help="folder of the artefact")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    regime = Regime(mode=options.mode, runtime=options.runtime)
    samples, data_sha256 = load_samples(regime, cache=options.cache, folder=options.folder, jobs=options.jobs)
    settings = additive_settings(options.mode, members=options.members, epochs=options.epochs, seed=options.seed)
    families = predict_families(samples, replace(settings, members=1), folds=FOLDS, folder=options.folder)
    artefact, tensors = train_additive(
        samples,
        settings,
        families,
        data_sha256=data_sha256,
        command=(
            f"python -m dippm.training.additive --mode {options.mode} --runtime {options.runtime} "
            f"--members {options.members} --epochs {options.epochs} --seed {options.seed}"
        ),
    )
    path = manifest_path(regime, options.out)
    artefact.write(path)
    write_tensors(path, tensors)
    sys.stdout.write(json.dumps({"test": artefact.test, "half_widths": artefact.half_widths}, indent=1) + "\n")


if __name__ == "__main__":
    main()
