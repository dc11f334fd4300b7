"""Samples to train on: made-up labels of small networks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dippm.datasets.graph_samples import GraphSamples, assign_parts, build_samples
from dippm.datasets.store.label import Label
from dippm.datasets.training_samples import TrainingSamples, build_training_samples
from dippm.devices import DeviceSpec
from dippm.training.additive_fit import AdditiveSettings
from dippm.training.additive_samples import AdditiveSamples, build_additive_samples
from dippm.training.settings import TrainingSettings


@pytest.fixture(scope="session")
def samples(labelled_models: tuple[list[Label], Path]) -> GraphSamples:
    labels, cache = labelled_models
    return build_samples(labels, cache)


@pytest.fixture(scope="session")
def parts(samples: GraphSamples):
    return assign_parts(samples)


@pytest.fixture(scope="session")
def settings() -> TrainingSettings:
    return TrainingSettings(hidden=8, epochs=4, batch_size=8, learning_rate=0.01, dropout=0.2, accelerator="cpu")


@pytest.fixture(scope="session")
def step_labels(training_labels: tuple[list[Label], Path]) -> list[Label]:
    """Labels of training steps on a card that the catalogue knows."""
    labels, _ = training_labels
    return [replace(label, measurement=replace(label.measurement, device="GeForce RTX 3090")) for label in labels]


@pytest.fixture(scope="session")
def step_samples(
    step_labels: list[Label], training_labels: tuple[list[Label], Path], tmp_path_factory: pytest.TempPathFactory
) -> AdditiveSamples:
    folder = tmp_path_factory.mktemp("additive")
    return build_additive_samples(step_labels, cache=training_labels[1], folder=folder, parameters_m={})


@pytest.fixture(scope="session")
def two_devices(step_samples: AdditiveSamples) -> AdditiveSamples:
    """Every other row as if another card had been measured."""
    names = ("GeForce RTX 3090", "GeForce RTX 4090")
    labels = tuple(
        replace(label, measurement=replace(label.measurement, device=names[position % 2]))
        for position, label in enumerate(step_samples.labels)
    )
    return replace(step_samples, labels=labels)


@pytest.fixture(scope="session")
def additive_settings() -> AdditiveSettings:
    return AdditiveSettings(members=2, epochs=2, width=8)


@pytest.fixture(scope="session")
def steps(training_labels: tuple[list[Label], Path]) -> TrainingSamples:
    labels, folder = training_labels
    return build_training_samples(labels, folder)


@pytest.fixture(scope="session")
def step_parts(steps: TrainingSamples):
    return assign_parts(steps)


@pytest.fixture(scope="session")
def card_labels(own_device: tuple[list[Label], DeviceSpec]) -> list[Label]:
    """Labels of a card that the catalogue does not know, see ``own_device``."""
    return own_device[0]


@pytest.fixture(scope="session")
def card(own_device: tuple[list[Label], DeviceSpec]) -> DeviceSpec:
    """That card."""
    return own_device[1]
