"""A graph laid out once holds for other layouts, and knows what a device can compute with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dippm.costs.conditions import Conditions
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.devices import find_device
from dippm.graph import Graph, OpKind
from dippm.predictors.prepared_graph import CompiledGraph, PreparedGraph, sum_over_nodes


@pytest.fixture(name="graph")
def _graph(builder: Any) -> Graph:
    x = builder.input(builder.N, 64)
    x = builder.node(OpKind.LINEAR, [x, builder.weight(10, 64)], builder.N, 10)
    builder.node(OpKind.RELU, [x], builder.N, 10)
    return builder.graph()


def test_it_is_kept_for_other_layouts_and_not_for_other_software(graph: Graph) -> None:
    compiled = CompiledGraph.of(graph, Conditions.parse(precision="amp"), DEFAULT_SOFTWARE)
    assert compiled.is_for(Conditions.parse(precision="amp", layout="nhwc"), DEFAULT_SOFTWARE)
    assert not compiled.is_for(Conditions.parse(precision="fp32"), DEFAULT_SOFTWARE)
    assert not compiled.is_for(Conditions.parse(precision="amp"), Software(torch=(1, 12)))
    assert compiled.is_of({OpKind.RELU}).tolist() == [node.kind is OpKind.RELU for node in graph.nodes]


def test_work_grows_with_the_batch(graph: Graph) -> None:
    conditions = Conditions.parse(precision="bf16")
    prepared = PreparedGraph.of(
        CompiledGraph.of(graph, conditions, DEFAULT_SOFTWARE), batches=[1, 8], conditions=conditions
    )
    assert prepared.macs == (640, 5120)
    assert prepared.traffic_bytes[1] > prepared.traffic_bytes[0]
    assert (prepared.has_format(find_device("A100")), prepared.has_format(find_device("T4"))) == (True, False)
    # A FLOP on the tensor cores takes a smaller part of its peak than one of FP32.
    assert prepared.fp32_equivalent(find_device("A100")).min() < 1.0


def test_sums_are_weighted() -> None:
    assert sum_over_nodes(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1.0, 10.0])).tolist() == [21.0, 43.0]
