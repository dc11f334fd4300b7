"""Biases of attention scores by the distance of two positions."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from dippm.costs.workload import Workload

HEADS, LENGTH, SIZE, COLUMNS = 4, 16, 8, 6
GATE = {
    "q": (HEADS * SIZE,),
    "d": (1, HEADS, LENGTH, LENGTH),
    "w": (SIZE, COLUMNS),
    "b": (COLUMNS,),
    "e": (1, HEADS, 1, 1),
}


def test_table_of_buckets(one, shapes, kinds) -> None:
    weights = {"t": np.zeros((32, HEADS), np.float32), "n": np.array(LENGTH), "m": np.array(20)}
    graph = one("RelativePositionBias", "t n m", inputs={}, weights=weights, domain="com.microsoft")
    assert graph.unsupported_ops == {}
    assert shapes(graph) == [["1", str(HEADS), str(LENGTH), "20"]]
    assert graph.parameter_count == 32 * HEADS
    assert "embedding" in kinds(graph)


def test_table_for_a_length_that_only_data_tells_is_unknown(one) -> None:
    weights = {"t": np.zeros((32, HEADS), np.float32)}
    inputs = {"n": [1], "m": [1]}
    graph = one("RelativePositionBias", "t n m", inputs=inputs, weights=weights, domain="com.microsoft")
    assert graph.unsupported_ops == {"com.microsoft.RelativePositionBias": 1}


def test_gate_of_each_query(read, shapes, kinds) -> None:
    names = ["x", "q", "d", "w", "b", "e"]
    node = helper.make_node("GatedRelativePositionBias", names, ["y"], domain="com.microsoft", num_heads=HEADS)
    weights = {name: np.zeros(shape, np.float32) for name, shape in GATE.items()}
    graph = read([node], weights=weights, inputs={"x": ["N", LENGTH, HEADS * SIZE]}, domains=["com.microsoft"])
    assert graph.unsupported_ops == {}
    assert shapes(graph) == [["N", str(HEADS), str(LENGTH), str(LENGTH)]]
    assert kinds(graph).count("linear") == 1
    assert Workload.from_graph(graph).at([3]).macs.sum() == 3 * HEADS * LENGTH * SIZE * COLUMNS


@pytest.mark.parametrize(
    ("change", "said"), [({"heads": 3}, "3 heads"), ({"w": (SIZE + 2, COLUMNS)}, "8 columns of a head")]
)
def test_gates_that_do_not_fit_are_refused(refused, change: dict, said: str) -> None:
    heads = change.pop("heads", HEADS)
    weights = {name: np.zeros(shape, np.float32) for name, shape in (GATE | change).items()}
    inputs = {"x": ["N", LENGTH, HEADS * SIZE]}
    options = {"inputs": inputs, "weights": weights, "domain": "com.microsoft", "num_heads": heads}
    assert said in refused("GatedRelativePositionBias", "x q d w b e", **options)


def test_table_must_have_two_dimensions(refused) -> None:
    weights = {"t": np.zeros(HEADS, np.float32), "n": np.array(LENGTH)}
    assert "buckets" in refused("RelativePositionBias", "t n n", inputs={}, weights=weights, domain="com.microsoft")
