"""A small network, and features of plans at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions
from dippm.costs.kernels.model import load_kernel_model
from dippm.costs.rates import Rates
from dippm.devices import find_device
from dippm.features.physical import COLUMNS, PhysicalPlan, PhysicalSamples
from dippm.graph import Graph, OpKind

_SQUARE = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}


@pytest.fixture
def chain(builder: Any) -> Callable[..., Graph]:
    """Makes a network of some layers."""

    def make(*, layers: int) -> Graph:
        """Convolution, batch norm and ReLU, over and over; then a view and a linear layer."""
        n = builder.N
        x = builder.input(n, 32, 28, 28)
        for _ in range(layers):
            x = builder.node(OpKind.CONV, [x, builder.weight(32, 32, 3, 3)], n, 32, 28, 28, **_SQUARE)
            x = builder.node(
                OpKind.BATCH_NORM, [x, builder.weight(32), builder.weight(32)], n, 32, 28, 28, axes_size=32
            )
            x = builder.node(OpKind.RELU, [x], n, 32, 28, 28)
        x = builder.node(OpKind.GLOBAL_POOL, [x], n, 32, 1, 1, output_size=(1, 1))
        x = builder.node(OpKind.VIEW, [x], n, 32, alias_of=x, function="view")
        result: Graph = builder.graph(builder.node(OpKind.LINEAR, [x, builder.weight(10, 32)], n, 10))
        return result

    return make


@pytest.fixture
def at() -> Callable[..., PhysicalSamples]:
    """Works out a plan's features at some batches."""

    def sample(plan: PhysicalPlan, *batches: int, device: str = "RTX 3090", **conditions: Any) -> PhysicalSamples:
        return plan.at(
            batches,
            device=find_device(device),
            conditions=Conditions(**conditions),
            rates=Rates(),
            kernels=load_kernel_model(),
        )

    return sample


@pytest.fixture
def column() -> Callable[[PhysicalSamples, str], np.ndarray]:
    """Reads a column of the features."""

    def read(sample: PhysicalSamples, name: str) -> np.ndarray:
        values: np.ndarray = sample.node_features[:, :, COLUMNS.index(name)]
        return values

    return read
