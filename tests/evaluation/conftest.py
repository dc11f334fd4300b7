"""Samples made up for tests: no graph is read for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from dippm.costs.conditions import Conditions
from dippm.datasets.graph_samples import GraphSamples
from dippm.datasets.recipes.recipe import Recipe
from dippm.datasets.selection import read_targets
from dippm.datasets.store.label import Label
from dippm.features.cost_sums import COST_COLUMNS
from dippm.frontends.inputs import InputEntry, InputShapes
from dippm.measuring.configuration import Configuration
from dippm.measuring.measurement import Measurement, Outcome, SoftwareStack

DEVICE = "A100-SXM4-40GB"


def make_label(
    model: int,
    *,
    family: str = "resnet",
    batch: int = 1,
    memory_mb: float | None = None,
    latency_ms: float | None = 1.0,
    repeat: int = 0,
    source: str = "dippm",
    device: str = DEVICE,
    conditions: Conditions | None = None,
) -> Label:
    return Label(
        recipe=Recipe(
            collection="test",
            family=family,
            architecture="test:net",
            arguments={"number": model},
            inputs=InputShapes(positional=(InputEntry(shape=(3, 8, 8)),)),
            batch=batch,
        ),
        configuration=Configuration(batch=batch, conditions=conditions or Conditions()),
        measurement=Measurement(
            outcome=Outcome.OK,
            device=device,
            measured_at="",
            memory_mb=memory_mb,
            latency_ms=latency_ms,
            software=SoftwareStack(framework="torch 2.13.0"),
        ),
        repeat=repeat,
        graph_hash=f"graph {model}",
        source=source,
    )


def make_samples(labels: Sequence[Label], *, operators: Sequence[int] | None = None) -> GraphSamples:
    counts = np.array(operators if operators is not None else [2] * len(labels))
    nodes = int(counts.sum())
    return GraphSamples(
        labels=tuple(labels),
        node_features=np.zeros((nodes, 32), dtype=np.float32),
        edge_index=np.zeros((2, 0), dtype=np.int64),
        node_offsets=np.concatenate([[0], np.cumsum(counts)]),
        edge_offsets=np.zeros(len(labels) + 1, dtype=np.int64),
        static_features=np.ones((len(labels), 5)),
        cost_sums=np.ones((len(labels), len(COST_COLUMNS))),
        targets=read_targets(labels),
        key="0123456789abcdef",
        unread={},
    )


@pytest.fixture(name="make_label", scope="session")
def _make_label() -> Callable[..., Label]:
    return make_label


@pytest.fixture(name="make_samples", scope="session")
def _make_samples() -> Callable[..., GraphSamples]:
    return make_samples


@pytest.fixture(scope="session")
def zoo() -> GraphSamples:
    """Five families of eight models at two batches each, with memory from 100 to 6,900 MiB."""
    families = ("alexnet", "bert", "convnext", "densenet", "efficientnet")
    labels = [
        make_label(
            8 * place + number,
            family=family,
            batch=batch,
            memory_mb=100.0 + 200.0 * number * batch + 1000.0 * place,
            latency_ms=1.0 + number * batch,
        )
        for place, family in enumerate(families)
        for number in range(8)
        for batch in (1, 2)
    ]
    return make_samples(labels, operators=[30 * (1 + index // 8) for index in range(len(labels))])
