"""Labels by networks that have not seen what a network on measured labels is tested on, for it to learn from first.

    python -m dippm.training.unseen_labels --labels data/labels/{h200/labels,h200/shared,h100/labels}.parquet
        --traces data/labels/{h200/traces,h200/shared-traces,h100/traces}.parquet
        --layers data/labels/h200/layers.parquet --layer-traces data/labels/h200/layer-traces.parquet
        --device H200 --precision amp --seed 0 --recipe dippm-zoo --software "torch 2.11+cu130" --cache graphs
        --out predicted.parquet

The shipped networks learned from every call that was measured: what they say of other models hides what was measured of
those that a training by the same labels is tested on. Here the models are left out that ``dippm train --seed`` on the
first of these files validates and tests on: of all precisions, layouts and devices, of layers by themselves and
of the power model. What is fitted on the rest predicts a collection, of whose labels
:class:`dippm.training.pretraining.Pretraining` leaves the same models out. The laws of the plain sum were settled with
all rows in view.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dippm.costs.conditions import Conditions, Mode, Runtime
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.datasets.graph_cache import GraphCache, build_graphs
from dippm.datasets.graph_samples import GraphSamples, Part, assign_parts
from dippm.datasets.label_graphs import build_label_graphs, load_label_graph
from dippm.datasets.recipes.collections import load_collection
from dippm.datasets.selection import LabelSelection
from dippm.datasets.store.label import OWN_SOURCE, Label
from dippm.datasets.store.parquet import export_parquet, read_parquet
from dippm.devices import find_device
from dippm.predictors.additive_artefact import (
    ARTEFACT_FOLDER,
    AdditiveArtefact,
    Regime,
    manifest_path,
    read_tensors,
    write_tensors,
)
from dippm.predictors.calibration import ARTEFACT_PATH, Calibration
from dippm.predictors.physics import PhysicsPredictor
from dippm.training.additive import additive_tensors, describe_errors
from dippm.training.additive_fit import AdditiveSettings, fit_additive
from dippm.training.additive_samples import AdditiveSamples
from dippm.training.architecture_networks import (
    add_traced_arguments,
    architecture_settings,
    captured_wall_ms,
    is_captured_alone,
    read_traced_samples,
)
from dippm.training.power_fit import PowerPoint, fit_corrected_power
from dippm.training.predicted_labels import predict_labels
from dippm.training.published_power import idle_share, read_points_of_devices, shared_architecture
from dippm.training.train_model import load_samples

__all__ = ["Held", "main", "write_unseeing"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """What a training is validated and tested on.

    Args:
        models: Keys of the models.
        graphs: Fingerprints of their graphs: the same model may have two names.
    """

    models: frozenset[str]
    graphs: frozenset[str]

    @classmethod
    def of(cls, samples: GraphSamples, *, seed: int) -> Held:
        """What :func:`dippm.training.train_model.train_model` does not train on.

        Args:
            samples: The samples of the training.
            seed: Its seed, which draws the split.
        """
        parts = assign_parts(samples, seed=seed)
        held = [samples.labels[place] for place in np.flatnonzero((parts == Part.VALIDATION) | (parts == Part.TEST))]
        return cls(
            models=frozenset(label.recipe.model_key for label in held),
            graphs=frozenset(label.graph_hash for label in held if label.graph_hash),
        )

    def __contains__(self, label: Label) -> bool:
        return label.recipe.model_key in self.models or label.graph_hash in self.graphs


def write_unseeing(
    folder: Path,
    samples: AdditiveSamples,
    points: Sequence[PowerPoint],
    held: Held,
    settings: AdditiveSettings,
    *,
    idle: float,
) -> dict[str, float]:
    """Write the artefacts of a predictor whose networks and power of one architecture are fitted without some models.

    Args:
        folder: Folder of the artefacts; it is made, and may not be there yet.
        samples: Traced calls, and layers behind them.
        points: Powers of such calls, none of what is left out.
        held: What is left out.
        settings: Settings of the networks.
        idle: Share of a board's limit that is drawn while no kernel runs.

    Returns:
        Errors of the networks on captured calls that were left out.
    """
    is_held = np.array([label in held for label in samples.labels])
    is_call = np.ones(len(samples), dtype=bool)
    is_call[samples.layers] = False
    # Layers too by what is held, not by its traced calls: a model may have none, or stand there under another name.
    fitted = fit_additive(samples, np.flatnonzero(~is_held), settings)
    shutil.copytree(ARTEFACT_FOLDER, folder)
    architecture = shared_architecture(points)
    path = manifest_path(Regime(mode=Mode.INFERENCE, architecture=architecture), folder)
    # Labels have no intervals, which rest on distances to what the shipped networks learned from.
    kept = {name: values for name, values in read_tensors(path).items() if name.startswith("novelty.")}
    replace(AdditiveArtefact.read(path), members=settings.members).write(path)
    write_tensors(path, {**additive_tensors(fitted), **kept})
    calibration, model = Calibration.read(folder / ARTEFACT_PATH.name), fit_corrected_power(points, idle=idle).model
    power = replace(calibration.power, measured={**calibration.power.measured, architecture: model})
    replace(calibration, power=power).write(folder / ARTEFACT_PATH.name)
    is_alone = np.array([is_captured_alone(label) for label in samples.labels])
    (test,) = np.nonzero(is_held & is_call & is_alone)
    predicted_ms, measured_ms = fitted.predict_ms(samples, test), samples.measured_ms[test]
    return describe_errors(captured_wall_ms(predicted_ms), captured_wall_ms(measured_ms))


def _with_graphs(labels: Sequence[Label], cache: GraphCache, *, jobs: int) -> list[Label]:
    """Those labels at inference, with the hashes of their graphs, which most files of labels lack."""
    chosen = [label for label in labels if label.configuration.conditions.mode is Mode.INFERENCE]
    build_label_graphs(chosen, cache, jobs=jobs)
    graphs = [load_label_graph(label, cache) for label in chosen]
    return [
        label if cached is None else replace(label, graph_hash=cached.fingerprint)
        for label, cached in zip(chosen, graphs, strict=True)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: fit, predict, write the labels, print how far the networks are off."""
    parser = argparse.ArgumentParser(description="Labels by networks that have not seen what a training is tested on.")
    add_traced_arguments(parser)
    parser.add_argument("--device", required=True, help="device of the training, whose labels are the first file")
    parser.add_argument("--precision", required=True, help="its precision; calls are captured")
    parser.add_argument("--seed", type=int, default=0, help="its seed")
    parser.add_argument("--recipe", nargs="+", required=True, help="collections that are predicted")
    parser.add_argument("--software", type=Software.parse, default=DEFAULT_SOFTWARE, help="what it is predicted for")
    parser.add_argument("--jobs", type=int, default=1, help="processes that read models which the cache lacks")
    parser.add_argument("--members", type=int, default=2, help="networks whose times are averaged")
    parser.add_argument("--epochs", type=int, default=None, help="40 when left out")
    parser.add_argument("--out", type=Path, required=True, help="Parquet file of the labels")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    conditions = Conditions.parse(precision=options.precision, runtime=Runtime.CUDA_GRAPH.value)
    device, cache = find_device(options.device), GraphCache(options.cache)
    labels = [label for path in options.labels for label in read_parquet(path)]
    selection = LabelSelection(conditions=conditions, device=options.device)
    held = Held.of(
        load_samples(read_parquet(options.labels[0]), selection, options.cache, jobs=options.jobs), seed=options.seed
    )
    samples = read_traced_samples(options, mode=Mode.INFERENCE, jobs=options.jobs)
    own = [label for label in labels if label.source == OWN_SOURCE]
    known = [label for label in _with_graphs(own, cache, jobs=options.jobs) if label not in held]
    points = read_points_of_devices(known, cache, PhysicsPredictor.load())
    settings = architecture_settings(Mode.INFERENCE)
    settings = replace(settings, members=options.members, epochs=options.epochs or settings.epochs)
    recipes = [recipe for name in options.recipe for recipe in load_collection(name)]
    with tempfile.TemporaryDirectory() as folder:
        artefacts = Path(folder) / "artefacts"
        errors = write_unseeing(artefacts, samples, points, held, settings, idle=idle_share(own))
        for failure in build_graphs(recipes, cache, jobs=options.jobs):
            _LOG.warning("left out %s: %s", failure.recipe.architecture, failure.reason)
        count = export_parquet(
            predict_labels(
                recipes,
                cache,
                device=device,
                conditions=conditions,
                software=options.software,
                predictor=PhysicsPredictor.load(artefacts),
            ),
            options.out,
        )
    found = {"labels": count, "models_left_out": len(held.models), "errors_of_time": errors}
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
