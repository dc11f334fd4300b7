from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from dippm.costs.workload import Workload
from dippm.graph import OpKind


@pytest.mark.parametrize("shape", [["N", 6, 32], ["N", 4, 6, 8]])
def test_features_are_turned_in_seven_steps(one, shapes, shape: list) -> None:
    graph = one(
        "RotaryEmbedding",
        "x i c c",
        inputs={"x": shape, "i": ["N", 6]},
        weights={"c": np.zeros((64, 4), np.float32)},
        dtypes={"i": TensorProto.INT64},
        domain="com.microsoft",
    )
    assert [node.kind.value for node in graph.nodes] == ["view", "view", "unary", "concat", "mul", "mul", "add"]
    assert shapes(graph) == [[str(size) for size in shape]]
    assert Workload.from_graph(graph).at([1]).macs.sum() == 0
    (negated,) = (node for node in graph.nodes if node.kind is OpKind.UNARY)
    assert str(graph.tensors[negated.outputs[0]].shape[-1]) == str(shape[-1] // 2)


def test_the_tables_are_read_by_the_products(one) -> None:
    weights = {"cos": np.zeros((64, 4), np.float32), "sin": np.zeros((64, 4), np.float32)}
    graph = one("RotaryEmbedding", "x cos sin", inputs={"x": ["N", 4, 6, 8]}, weights=weights, opset=23)
    read = [graph.tensors[node.inputs[1]].name for node in graph.nodes if node.kind is OpKind.MUL]
    assert read == ["cos", "sin"]


def test_a_row_alone_has_no_positions(refused) -> None:
    weights = {"c": np.zeros((64, 4), np.float32)}
    assert "three dimensions" in refused("RotaryEmbedding", "x c c", inputs={"x": ["N", 8]}, weights=weights, opset=23)
