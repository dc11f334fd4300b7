from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.graph import DType, OpKind, TensorRole


def test_quantised_weight_stays_as_stored_and_becomes_numbers_at_every_call(read, kinds) -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wf"]),
        helper.make_node("Conv", ["x", "wf"], ["y"]),
    ]
    weights = {"w": np.zeros((4, 3, 1, 1), np.int8), "s": np.float32(0.1), "z": np.int8(0)}
    graph = read(nodes, weights=weights)
    assert kinds(graph) == ["dequantize", "conv"]
    assert graph.parameter_count == 12
    stored = graph.tensors[graph.nodes[0].inputs[0]]
    assert (stored.dtype, stored.role) == (DType.INT8, TensorRole.PARAMETER)
    assert "quantised" in graph.warnings[0]


_SCALE = {"s": np.array(0.1, np.float32), "z": np.array(3, np.uint8)}


def test_numbers_become_integers_and_numbers_again(read, kinds) -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    graph = read(nodes, weights=_SCALE)
    assert kinds(graph) == ["quantize", "dequantize"]
    assert [graph.tensors[node.outputs[0]].dtype for node in graph.nodes] == [DType.UINT8, DType.FLOAT32]


def test_the_zero_point_says_the_type_of_the_integers(one) -> None:
    graph = one("QuantizeLinear", "x s z", weights=_SCALE | {"z": np.array(0, np.int8)})
    assert graph.tensors[graph.outputs[0]].dtype is DType.INT8
    graph = one("QuantizeLinear", "x s", weights={"s": _SCALE["s"]}, opset=21, output_dtype=TensorProto.INT16)
    assert graph.tensors[graph.outputs[0]].dtype is DType.INT16


def test_scale_and_zero_point_may_come_from_the_data(one, shapes) -> None:
    graph = one("DynamicQuantizeLinear", "x", outputs=["y", "scale", "zero"])
    assert [node.kind for node in graph.nodes] == [OpKind.REDUCE, OpKind.QUANTIZE]
    assert [graph.tensors[index].dtype for index in graph.outputs] == [DType.UINT8, DType.FLOAT32, DType.UINT8]
    assert shapes(graph) == [["N", "3", "8", "8"], [], []]


@pytest.mark.parametrize(
    ("op_type", "names", "attributes", "inner", "shape"),
    [
        ("QLinearMul", "x s z x s z s z", {}, ["mul"], ["N", "3", "8", "8"]),
        ("QLinearSigmoid", "x s z s z", {}, ["sigmoid"], ["N", "3", "8", "8"]),
        ("QLinearLeakyRelu", "x s z s z", {}, ["leaky_relu"], ["N", "3", "8", "8"]),
        ("QLinearGlobalAveragePool", "x s z s z", {}, ["global_pool"], ["N", "3", "1", "1"]),
        ("QLinearAveragePool", "x s z s z", {"kernel_shape": [2, 2]}, ["avg_pool"], ["N", "3", "7", "7"]),
        ("QLinearReduceMean", "x s z s z", {"axes": [2, 3], "keepdims": 0}, ["reduce"], ["N", "3"]),
        ("QLinearSoftmax", "x s z s z", {"axis": -1}, ["softmax"], ["N", "3", "8", "8"]),
        ("QLinearConcat", "s z x s z x s z", {"axis": 1}, ["concat"], ["N", "6", "8", "8"]),
    ],
)
def test_operators_run_on_numbers_between_conversions(
    one, kinds, shapes, op_type, names, attributes, inner: list[str], shape: list[str]
) -> None:
    options = {"weights": _SCALE, "dtypes": {"x": TensorProto.UINT8}, "domain": "com.microsoft"}
    graph = one(op_type, names, **options, **attributes)
    read = names.split().count("x")
    assert kinds(graph) == ["dequantize"] * read + inner + ["quantize"]
    assert shapes(graph) == [shape]
    assert graph.tensors[graph.outputs[0]].dtype is DType.UINT8
