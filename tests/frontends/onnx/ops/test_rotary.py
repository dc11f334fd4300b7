from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.costs.workload import Workload
from dippm.frontends.onnx import read_onnx
from dippm.graph import OpKind, TensorRole


@pytest.mark.parametrize("shape", [["N", 6, 32], ["N", 4, 6, 8]])
def test_features_are_turned_in_five_kernels(one, shapes, shape: list) -> None:
    graph = one(
        "RotaryEmbedding",
        "x i c c",
        inputs={"x": shape, "i": ["N", 6]},
        weights={"c": np.zeros((64, 4), np.float32)},
        dtypes={"i": TensorProto.INT64},
        domain="com.microsoft",
    )
    steps = [node.kind.value for node in graph.nodes if node.kind is not OpKind.VIEW]
    assert steps == ["unary", "concat", "mul", "mul", "add"]
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


@pytest.mark.parametrize(("names", "domain", "opset"), [("x cos sin i", "", 23), ("x i cos sin", "com.microsoft", 17)])
def test_the_rows_in_use_are_read_of_tables_that_nothing_trains(one, names: str, domain: str, opset: int) -> None:
    weights = {"cos": np.zeros((4096, 16), np.float32), "sin": np.zeros((4096, 16), np.float32)}
    inputs = {"x": ["N", 6, 128], "i": ["N", 6]}
    options = {"weights": weights, "dtypes": {"i": TensorProto.INT64}, "opset": opset, "domain": domain}
    graph = one("RotaryEmbedding", names, inputs=inputs, num_heads=4, **options)
    assert graph.parameter_count == 0
    assert [tensor.name for tensor in graph.tensors if tensor.role is TensorRole.BUFFER] == ["cos", "sin"]
    products = [position for position, node in enumerate(graph.nodes) if node.kind is OpKind.MUL]
    moved = Workload.from_graph(graph).at([2]).bytes_read[0, products]
    # 2 samples of 6 positions, each with 128 features and 16 angles of 4 bytes.
    assert moved.tolist() == [2 * 6 * (128 + 16) * 4] * 2


def test_tables_are_known_behind_what_leaves_them_as_they_are(build) -> None:
    nodes = [
        helper.make_node("Cast", ["c"], ["table"], to=TensorProto.FLOAT),
        helper.make_node("RotaryEmbedding", ["x", "table", "table", "i"], ["y"]),
    ]
    inputs = {"x": ["N", 4, 6, 32], "i": ["N", 6]}
    weights = {"c": np.zeros((64, 16), np.float16)}
    model = build(nodes, inputs=inputs, weights=weights, dtypes={"i": TensorProto.INT64}, opset=23)
    assert read_onnx(model).parameter_count == 0


def test_two_tensors_are_turned_by_angles_at_hand(one, shapes, kinds) -> None:
    inputs = {"a": ["N", 6, 8], **{name: ["N", 2, 6, 8] for name in "qrks"}}
    options = {"inputs": inputs, "outputs": ["y", "z"], "domain": "com.microsoft"}
    graph = one("GemmaRotaryEmbedding", "a q r k s", **options)
    assert shapes(graph) == [["N", "2", "6", "8"]] * 2
    assert kinds(graph) == ["unary", "unary", *["mul", "mul", "add"] * 2]
