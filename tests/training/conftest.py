"""Samples to train on: made-up labels of small networks."""

from __future__ import annotations

from pathlib import Path

import pytest

from dippm.datasets.graph_samples import GraphSamples, assign_parts, build_samples
from dippm.datasets.store.label import Label
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
