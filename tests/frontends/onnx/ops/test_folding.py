"""Numbers of the code are worked out while the model is read; weights, large tensors and what numpy refuses are not."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from dippm.frontends.onnx.values import DATA_LIMIT


def _rows(read, first: np.ndarray, second: np.ndarray, *, op_type: str = "Add"):
    nodes = [helper.make_node(op_type, ["a", "b"], ["n"]), helper.make_node("Reshape", ["x", "n"], ["y"])]
    return read(nodes, weights={"a": first, "b": second}, inputs={"x": ["N", 12]})


def test_a_shape_from_arithmetic_leaves_no_operator(read, kinds, shape_of) -> None:
    graph = _rows(read, np.array([-2, 1]), np.array([1, 5]))
    assert kinds(graph) == ["view"]
    assert shape_of(graph, graph.outputs[0]) == ["2N", "6"]


def test_arithmetic_errors_of_numbers_are_nobodys_concern(read, kinds) -> None:
    nodes = [helper.make_node("Div", ["val_1", "val_2"], ["q"]), helper.make_node("Mul", ["x", "q"], ["y"])]
    graph = read(nodes, weights={"val_1": np.float32(1), "val_2": np.float32(0)})
    assert kinds(graph) == ["mul"]
    assert graph.nodes[0].attributes["scalar"] == np.inf


@pytest.mark.parametrize(("size", "kinds_left"), [(8, ["add"]), (DATA_LIMIT + 1, ["unary", "add"])])
def test_what_is_large_is_left_to_the_device(read, kinds, size: int, kinds_left: list[str]) -> None:
    nodes = [helper.make_node("Exp", ["t"], ["e"]), helper.make_node("Add", ["x", "e"], ["y"])]
    table = np.arange(size, dtype=np.float32).reshape(1, size)
    constant = helper.make_node("Constant", [], ["t"], value=helper.make_tensor("t", 1, table.shape, table))
    assert kinds(read([constant, *nodes], inputs={"x": ["N", size]})) == kinds_left


def test_weights_are_computed_at_every_call(read, kinds) -> None:
    nodes = [helper.make_node("Exp", ["w"], ["e"]), helper.make_node("MatMul", ["x", "e"], ["y"])]
    graph = read(nodes, weights={"w": np.zeros((8, 8), np.float32)}, inputs={"x": ["N", 8]})
    assert kinds(graph)[0] == "unary"
    assert graph.parameter_count == 64
