from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.graph import OpKind


def test_table_look_ups(read, kinds) -> None:
    nodes = [
        helper.make_node("Gather", ["words", "ids"], ["w"]),
        helper.make_node("Gather", ["words", "first"], ["p"]),
        helper.make_node("Add", ["w", "p"], ["y"]),
    ]
    weights = {"words": np.zeros((100, 16), np.float32), "first": np.arange(6)}
    graph = read(nodes, weights=weights, inputs={"ids": ["N", 6]}, dtypes={"ids": TensorProto.INT64})
    assert kinds(graph) == ["embedding", "gather", "add"]


@pytest.mark.parametrize(
    ("indices", "axis", "kind", "shape"),
    [
        (np.array(1), 2, "view", ["N", "3", "8"]),
        (np.array([1]), 2, "view", ["N", "3", "1", "8"]),
        (np.array([0, 3, 5]), 3, "gather", ["N", "3", "8", "3"]),
        (np.array([[0, 1], [2, 2]]), 1, "gather", ["N", "2", "2", "8", "8"]),
    ],
)
def test_slices_by_known_indices(one, shapes, indices: np.ndarray, axis: int, kind: str, shape: list[str]) -> None:
    graph = one("Gather", "x i", weights={"i": indices}, axis=axis)
    assert [node.kind.value for node in graph.nodes] == [kind]
    assert shapes(graph) == [shape]


def test_elements_and_tuples_of_indices(one, shapes) -> None:
    options = {"inputs": {"x": ["N", 7, 5], "i": ["N", 4, 2]}, "dtypes": {"i": TensorProto.INT64}}
    assert shapes(one("GatherElements", "x i", axis=1, **options)) == [["N", "4", "2"]]
    assert shapes(one("GatherND", "x i", batch_dims=1, **options)) == [["N", "4"]]
    assert shapes(one("GatherND", "x i", batch_dims=0, **options)) == [["N", "4", "5"]]


def test_replacing_elements_keeps_the_shape(one, shapes) -> None:
    options = {"inputs": {"x": ["N", 7], "i": ["N", 4], "u": ["N", 4]}, "dtypes": {"i": TensorProto.INT64}}
    graph = one("ScatterElements", "x i u", axis=1, **options)
    (node,) = graph.nodes
    assert (node.kind, node.inputs) == (OpKind.SCATTER, graph.inputs)
    assert shapes(graph) == [["N", "7"]]


def test_known_elements_are_replaced_while_reading(read, kinds, shape_of) -> None:
    nodes = [
        helper.make_node("ScatterND", ["target", "where", "what"], ["sizes"]),
        helper.make_node("Reshape", ["x", "sizes"], ["y"]),
    ]
    weights = {"target": np.array([-1, 4, 9]), "where": np.array([[2]]), "what": np.array([6])}
    graph = read(nodes, weights=weights, inputs={"x": ["N", 24]})
    assert kinds(graph) == ["view"]
    assert shape_of(graph, graph.outputs[0]) == ["N", "4", "6"]


@pytest.mark.parametrize(("axis", "shape"), [(-1, ["N", "5", "10"]), (1, ["N", "10", "5"])])
def test_a_mark_at_each_index(one, shapes, axis: int, shape: list[str]) -> None:
    weights = {"depth": np.array(10), "values": np.array([0, 1], np.float32)}
    options = {"inputs": {"i": ["N", 5]}, "dtypes": {"i": TensorProto.INT64}}
    assert shapes(one("OneHot", "i depth values", weights=weights, axis=axis, **options)) == [shape]


def test_what_a_mask_chooses_is_at_most_all(one, shapes) -> None:
    known = one("Compress", "x m", weights={"m": np.array([True, False, True])}, axis=1)
    assert shapes(known) == [["N", "2", "8", "8"]]
    assert known.warnings == ()
    options = {"inputs": {"x": ["N", 6], "m": [6]}, "dtypes": {"m": TensorProto.BOOL}}
    open_mask = one("Compress", "x m", axis=1, **options)
    assert shapes(open_mask) == [["N", "6"]]
    assert "Compress" in open_mask.warnings[0]


def test_indices_outside_are_refused(refused) -> None:
    node = {"weights": {"t": np.arange(4), "i": np.array([4])}, "inputs": {}}
    assert "outside" in refused("Gather", "t i", **node)
    assert "do not fit" in refused("GatherND", "x i", weights={"i": np.zeros((1, 5), np.int64)})


@pytest.mark.parametrize(
    ("indices", "axis", "expected"),
    [(1, -1, [1, 5, 1]), ([[0, -1]], 1, [[[5, 1], [1, 1], [1, 5]]]), ([3, -4], 0, [[1, 1], [1, 1], [1, 1]])],
)
def test_marks_at_known_indices_are_known(read, shape_of, indices: object, axis: int, expected: list) -> None:
    nodes = [
        helper.make_node("OneHot", ["i", "depth", "values"], ["marks"], axis=axis),
        helper.make_node("Reshape", ["marks", "flat"], ["row"]),
        helper.make_node("Expand", ["one", "row"], ["y"]),
    ]
    weights = {
        "i": np.array(indices), "depth": np.array([3]), "values": np.array([1, 5]), "flat": np.array([-1]),
        "one": np.zeros(1, np.float32),
    }  # fmt: skip
    graph = read(nodes, weights=weights)
    assert shape_of(graph, graph.outputs[0]) == [str(number) for number in np.ravel(expected)]


def test_marks_of_no_index_are_not_counted_by_their_depth(one, shapes) -> None:
    weights = {"i": np.zeros(0, np.int64), "depth": np.array(2**40), "values": np.array([1, 5])}
    assert shapes(one("OneHot", "i depth values", weights=weights)) == [["0", str(2**40)]]


def test_marks_need_two_numbers(refused) -> None:
    weights = {"i": np.array([1]), "depth": np.array(3), "values": np.array([1, 5, 7])}
    assert "for each of no mark and a mark" in refused("OneHot", "i depth values", weights=weights)
