from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from dippm.graph import DType, OpKind


def test_large_constant_is_a_buffer_and_a_layers_constant_is_its_weight(read) -> None:
    nodes = [
        helper.make_node("Constant", [], ["m"], value=numpy_helper.from_array(np.zeros((300, 300), np.float32), "m")),
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(np.zeros((300, 4), np.float32), "w")),
        helper.make_node("Add", ["x", "m"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["y"]),
    ]
    graph = read(nodes, inputs={"x": ["N", 300, 300]})
    assert graph.parameter_count == 1200
    assert {tensor.role.value for tensor in graph.tensors} == {"input", "buffer", "parameter", "activation"}


@pytest.mark.parametrize(
    ("attributes", "shape", "dtype"),
    [
        ({"value_ints": [1, 2, 3]}, ["3"], DType.INT64),
        ({"value_float": 2.5}, [], DType.FLOAT32),
        ({"value": numpy_helper.from_array(np.zeros((2, 3), np.float16), "c")}, ["2", "3"], DType.FLOAT16),
    ],
)
def test_a_constant_of_each_form(one, shapes, attributes: dict, shape: list[str], dtype: DType) -> None:
    graph = one("Constant", "", **attributes)
    assert shapes(graph) == [shape]
    assert graph.tensors[graph.outputs[0]].dtype is dtype


def test_one_number_repeated_for_each_sample_is_filled(read, kinds, shape_of) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["z"], value=numpy_helper.from_array(np.ones(1, np.int64), "v")),
        helper.make_node("Cast", ["z"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    graph = read(nodes, inputs={"x": ["N", 300, 300]})
    assert kinds(graph)[0] == "fill"
    assert graph.tensors[graph.nodes[0].outputs[0]].dtype is DType.INT64
    assert shape_of(graph, graph.nodes[0].outputs[0]) == ["N", "300", "300"]


@pytest.mark.parametrize(("bounds", "count"), [((0, 10, 1), 10), ((10, 0, -3), 4), ((5, 5, 1), 0), ((0, 1, 2), 1)])
def test_steps_are_counted(one, shapes, bounds: tuple[int, int, int], count: int) -> None:
    weights = dict(zip("abc", map(np.array, bounds), strict=True))
    assert shapes(one("Range", "a b c", weights=weights)) == [[str(count)]]


def test_random_numbers_are_an_operator(one, shapes) -> None:
    graph = one("RandomNormalLike", "x", dtype=TensorProto.FLOAT16)
    (node,) = graph.nodes
    assert (node.kind, node.inputs) == (OpKind.RANDOM, ())
    assert graph.tensors[graph.outputs[0]].dtype is DType.FLOAT16
    assert shapes(graph) == [["N", "3", "8", "8"]]
    assert one("Bernoulli", "x").nodes[0].inputs == graph.inputs
    drawn = one("Multinomial", "x", inputs={"x": ["N", 10]}, sample_size=4)
    assert shapes(drawn) == [["N", "4"]]
    assert drawn.tensors[drawn.outputs[0]].dtype is DType.INT32


def test_filters_are_as_large_as_asked_for(one, shapes) -> None:
    weights = {"bins": np.array(40), "length": np.array(512), "rate": np.array(16000), "f": np.float32(0)}
    assert shapes(one("MelWeightMatrix", "bins length rate f f", weights=weights)) == [["257", "40"]]
    assert shapes(one("HannWindow", "size", weights={"size": np.array(400)})) == [["400"]]
    assert shapes(one("EyeLike", "x", inputs={"x": ["N", 6]})) == [["N", "6"]]


@pytest.mark.parametrize(
    ("op_type", "names", "weights", "said"),
    [
        ("ConstantOfShape", "s", {"s": np.array([2, -1])}, "negative"),
        ("Range", "a a z", {"a": np.array(1), "z": np.array(0)}, "step is 0"),
        ("RandomNormal", "", {}, "shape"),
    ],
)
def test_what_cannot_be_made(refused, op_type: str, names: str, weights: dict, said: str) -> None:
    assert said in refused(op_type, names, weights=weights)
