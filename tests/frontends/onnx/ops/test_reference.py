"""Whole numbers are worked out by whatever operator an exporter makes sizes with; nothing else is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.frontends.onnx import read_onnx
from dippm.frontends.onnx.values import DATA_LIMIT

ONE, THREE = np.array([1], np.int64), np.array([3], np.int64)


def repeated(
    op_type: str, names: Sequence[str], weights: dict[str, Any], *, opset: int = 18, outputs: int = 1, **attributes: Any
) -> dict[str, Any]:
    """A model that repeats x, of shape [N, 3, 4], along its channels as often as the largest result says."""
    made = [f"r{number}" for number in range(outputs)]
    nodes = [
        helper.make_node("Shape", ["x"], ["all"]),
        helper.make_node("Slice", ["all", "one", "three"], ["sizes"]),
        helper.make_node(op_type, list(names), made, **attributes),
        helper.make_node("Cast", ["r0"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["whole", "flat"], ["row"]),
        helper.make_node("ReduceMax", ["row"], ["most"]),
        helper.make_node("Concat", ["one", "most", "one"], ["repeats"], axis=0),
        helper.make_node("Tile", ["x", "repeats"], ["y"]),
    ]
    stored = {"one": ONE, "three": THREE, "flat": np.array([-1], np.int64), **weights}
    return {"nodes": nodes, "weights": stored, "inputs": {"x": ["N", 3, 4]}, "opset": opset}


def whole(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


CASES = {
    "ArgMin": (["sizes"], {}, 0, {}),
    "ArgMax": (["sizes"], {}, 1, {}),
    "BitShift": (["a", "b"], {"a": np.array([3], np.uint64), "b": np.array([1], np.uint64)}, 6, {"direction": "LEFT"}),
    "Compress": (["sizes", "m"], {"m": np.array([True, False])}, 3, {}),
    "CumSum": (["sizes", "a"], {"a": np.int64(0)}, 7, {"reverse": 1}),
    "Einsum": (["sizes", "sizes"], {}, 25, {"equation": "i,i->"}),
    "GatherElements": (["sizes", "i"], {"i": whole(1)}, 4, {}),
    "Gemm": (["a", "a"], {"a": np.full((2, 2), 2, np.int64)}, 8, {}),
    "MatMul": (["sizes", "w"], {"w": whole(1, 2)}, 11, {}),
    "Pad": (["w", "p", "v"], {"w": whole(2, 2), "p": whole(1, 0), "v": np.int64(5)}, 5, {}),
    "ReduceL1": (["sizes"], {}, 7, {}),
    "ReduceSumSquare": (["sizes"], {}, 25, {}),
    "ScatterElements": (["sizes", "i", "u"], {"i": whole(1), "u": whole(6)}, 10, {"reduction": "add"}),
    "ScatterND": (["sizes", "i", "u"], {"i": whole(1)[None], "u": whole(6)}, 10, {"reduction": "add"}),
    "TopK": (["sizes", "k"], {"k": whole(1)}, 3, {"largest": 0, "outputs": 2}),
    "Unique": (["sizes"], {}, 4, {}),
}


@pytest.mark.parametrize("op_type", CASES)
def test_sizes_follow_from_values(read, shape_of, op_type: str) -> None:
    names, weights, expected, attributes = CASES[op_type]
    graph = read(**repeated(op_type, names, weights, **attributes))
    assert shape_of(graph, graph.outputs[0]) == ["N", str(3 * expected), "4"]
    assert all(node.source_op == "Tile" for node in graph.nodes)
    assert graph.warnings == ()


def test_what_follows_the_batch_follows_it_still(read, shape_of) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("CumSum", ["sizes", "zero"], ["sums"], reverse=1),  # N + 7, 7, 4
        helper.make_node("Gather", ["sums", "zero"], ["rows"]),
        helper.make_node("Unsqueeze", ["rows", "axes"], ["wide"]),
        helper.make_node("Expand", ["table", "wide"], ["y"]),
    ]
    weights = {"zero": np.int64(0), "axes": np.array([0], np.int64), "table": np.zeros(1, np.float32)}
    graph = read(nodes, weights=weights, inputs={"x": ["N", 3, 4]})
    assert shape_of(graph, graph.outputs[0]) == ["N+7"]


@pytest.mark.parametrize(
    ("data", "kinds_left"),
    [
        (np.ones((4, 4), np.float32), ["linear", "add"]),  # fractions are the device's
        (np.ones((4, 4), np.int64), ["add"]),
        (np.ones((DATA_LIMIT // 4 + 1, 4), np.int64), ["linear", "add"]),
    ],
)
def test_what_is_fractional_or_large_is_left_to_the_device(read, kinds, data: np.ndarray, kinds_left: list) -> None:
    tensor = helper.make_tensor("t", helper.np_dtype_to_tensor_dtype(data.dtype), data.shape, data)
    other = helper.make_tensor("t", tensor.data_type, (4, 4), np.ones(16, data.dtype))
    nodes = [
        helper.make_node("Constant", [], ["t"], value=tensor),
        helper.make_node("Constant", [], ["u"], value=other),
        helper.make_node("MatMul", ["t", "u"], ["p"]),
        helper.make_node("Add", ["x", "p"], ["y"]),
    ]
    types = {"x": tensor.data_type}
    assert kinds(read(nodes, inputs={"x": ["N", *data.shape]}, dtypes=types)) == kinds_left


def test_what_cannot_run_is_refused_by_its_rule(refused) -> None:
    weights = {"a": np.ones((2, 3), np.int64), "b": np.ones((2, 3), np.int64)}
    assert "columns meet" in refused("MatMul", "a b", weights=weights)


@pytest.mark.parametrize(
    ("op_type", "names", "weights", "attributes"),
    [
        ("Pad", ["a", "p"], {"a": whole(1, 2), "p": whole(0, 10**12)}, {}),
        ("Pad", ["a", "p"], {"a": np.ones((1,) * 30, np.int64), "p": whole(*[1] * 60)}, {}),
        ("Einsum", ["a", "a", "a", "a"], {"a": np.ones(900, np.int64)}, {"equation": "i,j,k,l->ijkl"}),
        ("MatMul", ["a", "b"], {"a": np.ones((4000, 1), np.int64), "b": np.ones((1, 4000), np.int64)}, {}),
    ],
)
def test_nothing_large_is_worked_out(
    build, monkeypatch: pytest.MonkeyPatch, op_type: str, names: list[str], weights: dict[str, Any],
    attributes: dict[str, Any],
) -> None:  # fmt: skip
    def refuse(*_: object) -> None:
        raise AssertionError("it was evaluated")

    monkeypatch.setattr("dippm.frontends.onnx.ops.reference._run", refuse)
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node(op_type, names, ["z"], **attributes)]
    graph = read_onnx(build(nodes, weights=weights, inputs={"x": ["N", 4]}, outputs=("y", "z"), opset=18))
    assert graph.nodes
