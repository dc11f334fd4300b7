from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from dippm.graph import DType, OpKind


def test_number_in_the_code_is_an_attribute(read) -> None:
    graph = read([helper.make_node("Sub", ["val_1", "x"], ["y"])], weights={"val_1": np.float32(1.5)})
    node = graph.nodes[0]
    assert (node.kind, node.inputs) == (OpKind.SUB, graph.inputs)
    assert dict(node.attributes) == {"scalar": 1.5, "scalar_first": True}


def test_learned_number_is_a_tensor(read) -> None:
    graph = read([helper.make_node("Mul", ["x", "scale"], ["y"])], weights={"scale": np.zeros(1, np.float32)})
    assert len(graph.nodes[0].inputs) == 2
    assert graph.parameter_count == 1


def test_cast_to_the_same_type_launches_nothing(read, kinds) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["a"], ["y"], to=TensorProto.FLOAT16),
    ]
    graph = read(nodes)
    assert kinds(graph) == ["cast"]
    assert graph.tensors[graph.outputs[0]].dtype is DType.FLOAT16


@pytest.mark.parametrize(("values", "is_causal"), [("causal", True), ("free", False)])
def test_causal_mask_is_known_by_its_values(read, values: str, is_causal: bool) -> None:
    mask = np.triu(np.full((6, 6), -np.inf, np.float32), 1) if values == "causal" else np.zeros((6, 6), np.float32)
    nodes = [
        helper.make_node("Constant", [], ["mask"], value=numpy_helper.from_array(mask, "m")),
        helper.make_node("Add", ["x", "mask"], ["y"]),
    ]
    graph = read(nodes, inputs={"x": ["N", 2, 6, 6]})
    assert graph.nodes[0].attributes.get("causal_mask", False) is is_causal


@pytest.mark.parametrize(
    ("op_type", "kind", "function"),
    [
        ("Relu", OpKind.RELU, None),
        ("Softplus", OpKind.SOFTPLUS, None),
        ("Selu", OpKind.ELU, None),
        ("Erf", OpKind.UNARY, "erf"),
        ("Softsign", OpKind.UNARY, "softsign"),
        ("Reciprocal", OpKind.UNARY, "reciprocal"),
    ],
)
def test_an_activation_has_a_kind_and_a_function_a_name(one, op_type: str, kind: OpKind, function: str | None) -> None:
    (node,) = one(op_type, "x").nodes
    assert (node.kind, node.attributes.get("function")) == (kind, function)


@pytest.mark.parametrize(
    ("op_type", "values", "expected"),
    [
        ("Div", (-7, 2), -3),  # towards zero, as the standard has it
        ("Mod", (-7, 3), 2),
        ("Add", (3, 4), 7),
        ("Pow", (3, 4), 81),
        ("Max", (3, 4), 4),
        ("Sub", (3, 5), -2),
    ],
)
def test_known_numbers_are_worked_out(read, op_type: str, values: tuple[int, int], expected: int) -> None:
    nodes = [
        helper.make_node(op_type, ["a", "b"], ["c"]),
        helper.make_node("Add", ["c", "ten"], ["n"]),
        helper.make_node("ConstantOfShape", ["n"], ["z"]),
        helper.make_node("Concat", ["x", "z"], ["y"], axis=0),
    ]
    weights = {"a": np.array([values[0]]), "b": np.array([values[1]]), "ten": np.array([10])}
    graph = read(nodes, weights=weights, inputs={"x": ["N"]})
    assert [str(dim) for dim in graph.tensors[graph.outputs[0]].shape] == [f"N+{expected + 10}"]


def test_comparisons_and_tests_give_booleans(one) -> None:
    for op_type, names in (("Greater", "x x"), ("IsNaN", "x")):
        graph = one(op_type, names)
        assert graph.tensors[graph.outputs[0]].dtype is DType.BOOL


def test_sizes_are_broadcast(one, shapes, refused) -> None:
    inputs = {"x": ["N", 3, 1, 8], "z": [4, 8]}
    for op_type in ("Add", "Mul", "Equal"):
        assert shapes(one(op_type, "x z", inputs=inputs)) == [["N", "3", "4", "8"]]
    assert refused("Add", "x z", inputs={"x": ["N", 3, 2, 8], "z": [4, 8]})


def test_any_number_of_inputs_is_combined_pair_by_pair(one) -> None:
    inputs = {name: ["N", 4] for name in "abc"}
    assert [node.kind for node in one("Sum", "a b c", inputs=inputs).nodes] == [OpKind.ADD] * 2
    mean = one("Mean", "a b c", inputs=inputs).nodes
    assert [node.kind for node in mean] == [OpKind.ADD, OpKind.ADD, OpKind.DIV]
    assert mean[-1].attributes["scalar"] == 3.0
    assert one("Max", "a", inputs={"a": ["N", 4]}).nodes == ()


def test_bounds_and_fillings_that_are_numbers_are_attributes(one) -> None:
    (clip,) = one("Clip", "x val_1 val_2", weights={"val_1": np.float32(-1), "val_2": np.float32(6)}).nodes
    assert (clip.kind, dict(clip.attributes)) == (OpKind.CLIP, {"min": -1.0, "max": 6.0})
    inputs = {"m": ["N", 4], "x": ["N", 4]}
    (where,) = one(
        "Where", "m x val_1", inputs=inputs, weights={"val_1": np.float32(-9)}, dtypes={"m": TensorProto.BOOL}
    ).nodes
    assert where.attributes == {"function": "where", "scalar": -9.0}
    assert len(where.inputs) == 2


def test_the_bits_of_a_number_are_seen_as_another_type(one) -> None:
    graph = one("BitCast", "x", opset=26, to=TensorProto.INT32)
    (node,) = graph.nodes
    assert (node.kind, graph.tensors[node.outputs[0]].dtype) == (OpKind.VIEW, DType.INT32)


def test_a_mean_of_known_numbers_is_known(read, shape_of) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Cast", ["sizes"], ["parts"], to=1),
        helper.make_node("Mean", ["parts", "parts"], ["mean"]),
        helper.make_node("Cast", ["mean"], ["whole"], to=7),
        helper.make_node("Reshape", ["x", "whole"], ["y"]),
    ]
    graph = read(nodes, inputs={"x": ["N", 3, 4]})
    assert shape_of(graph, graph.outputs[0]) == ["N", "3", "4"]
