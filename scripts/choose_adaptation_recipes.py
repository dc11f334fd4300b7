"""Choose the recipes of the collection ``adapt-50``: the configurations of timm models that stand for all others.

Usage: ``python scripts/choose_adaptation_recipes.py GRAPHS``, where GRAPHS is a graph cache filled by
``python -m dippm.training.additive``, and the measured tables are where ``DIPPM_DATA`` says. Prints a line per recipe:
model, pixels, batch, family.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from dippm.costs.conditions import Mode
from dippm.datasets.graph_cache import GraphCache
from dippm.datasets.location import data_folder
from dippm.datasets.store.label import Label
from dippm.devices import find_device
from dippm.predictors.additive_artefact import AdditiveArtefact, Regime, manifest_path, read_tensors
from dippm.predictors.physics import PhysicsPredictor
from dippm.training.additive_adaptation import choose_diverse
from dippm.training.additive_labels import read_measured_models
from dippm.training.additive_novelty import describe_samples
from dippm.training.additive_samples import build_additive_samples
from dippm.training.additive_shipped import load_fitted

_DEVICE = "GeForce RTX 3090"
_MODELS = 240
_BATCHES = (8, 32, 64, 128, 256)
_COUNT, _SINGLE = 42, 8
"""Diverse configurations, and models at a batch of one, which tell the host's rate."""
_LARGEST_MB = 6000.0
# Held out of all collections but its own.
_HELD_OUT = "convnext"


def main() -> None:
    """Choose and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("graphs", type=Path, help="A graph cache.")
    cache: Path = parser.parse_args().graphs
    regime = Regime(mode=Mode.INFERENCE)
    device = find_device(_DEVICE)
    known = {
        label.recipe.model_key: label
        for label in read_measured_models(data_folder(), regime.mode).labels
        if label.measurement.device == device.name
        and label.configuration.conditions.layout.value == "nchw"
        and not label.recipe.family.startswith(_HELD_OUT)
    }
    drawn = sorted(known.values(), key=lambda label: hashlib.sha256(label.recipe.model_key.encode()).hexdigest())
    candidates: list[Label] = []
    physics = PhysicsPredictor.load()
    for label in drawn[:_MODELS]:
        cached = GraphCache(cache).load(label.recipe.model_key, batch=1)
        if cached is None or cached.graph.fixed_batch is not None:
            continue
        rows = physics.predict(
            cached.graph, batches=_BATCHES, devices=[device], conditions=label.configuration.conditions
        )
        candidates += [_at_batch(label, row.batch) for row in rows if row.memory_mb <= _LARGEST_MB]
    artefact, tensors = AdditiveArtefact.read(manifest_path(regime)), read_tensors(manifest_path(regime))
    with tempfile.TemporaryDirectory() as folder:
        samples = build_additive_samples(
            candidates, cache=cache, folder=folder, parameters_m={}, rates=artefact.rates, device=device
        ).reading(artefact.columns)
    descriptors = describe_samples(samples, load_fitted(artefact, tensors).scale)
    chosen = choose_diverse(descriptors, np.arange(len(samples)), count=_COUNT)
    labels = [samples.labels[position] for position in chosen]
    singles = {label.recipe.architecture: replace(label.recipe, batch=1) for label in labels}
    step = max(1, len(singles) // _SINGLE)
    recipes = [label.recipe for label in labels] + list(singles.values())[::step][:_SINGLE]
    for recipe in sorted(recipes, key=lambda each: (each.architecture, each.batch)):
        name, size = recipe.architecture.removeprefix("zoo:timm:"), recipe.inputs.positional[0].shape[-1]
        sys.stdout.write(f'("{name}", {size}, {recipe.batch}, "{recipe.family}"),\n')


def _at_batch(label: Label, batch: int) -> Label:
    return replace(
        label,
        recipe=replace(label.recipe, batch=batch),
        configuration=replace(label.configuration, batch=batch),
    )


if __name__ == "__main__":
    main()
