from __future__ import annotations

import numpy as np
import pytest

from dippm.graph import DType, OpKind


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ({"kernel_shape": [2, 2], "strides": [2, 2]}, ["N", "3", "4", "3"]),
        ({"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}, ["N", "3", "5", "4"]),
        ({"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, ["N", "3", "5", "4"]),
        ({"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}, ["N", "3", "5", "4"]),
        ({"kernel_shape": [9, 7]}, ["N", "3", "1", "1"]),
    ],
)
@pytest.mark.parametrize(
    ("op_type", "kind"), [("MaxPool", OpKind.MAX_POOL), ("AveragePool", OpKind.AVG_POOL), ("LpPool", OpKind.AVG_POOL)]
)
def test_sizes_of_windows(one, shapes, op_type: str, kind: OpKind, attributes: dict, shape: list[str]) -> None:
    graph = one(op_type, "x", inputs={"x": ["N", 3, 9, 7]}, opset=18, **attributes)
    assert graph.nodes[-1].kind is kind
    assert graph.nodes[-1].attributes["kernel"] == tuple(attributes["kernel_shape"])
    assert shapes(graph) == [shape]


def test_places_of_maxima_are_whole_numbers(one, shapes) -> None:
    graph = one("MaxPool", "x", outputs=["y", "i"], kernel_shape=[2, 2], strides=[2, 2])
    assert shapes(graph) == [["N", "3", "4", "4"]] * 2
    assert graph.tensors[graph.outputs[1]].dtype is DType.INT64


@pytest.mark.parametrize(
    ("op_type", "function"), [("GlobalAveragePool", "mean"), ("GlobalMaxPool", "max"), ("GlobalLpPool", "mean")]
)
def test_one_number_for_each_channel(one, shapes, op_type: str, function: str) -> None:
    graph = one(op_type, "x", inputs={"x": ["N", 3, 4, 5, 6]})
    (node,) = graph.nodes
    assert (node.kind, node.attributes["function"]) == (OpKind.GLOBAL_POOL, function)
    assert shapes(graph) == [["N", "3", "1", "1", "1"]]


def test_windows_of_one_are_adaptive_pooling_to_the_size_that_is_there(one) -> None:
    (node,) = one("AveragePool", "x", kernel_shape=[1, 1]).nodes
    assert (node.kind, node.attributes["output_size"]) == (OpKind.GLOBAL_POOL, (8, 8))


def test_channels_may_stand_last(one, shapes) -> None:
    options = {"inputs": {"x": ["N", 8, 6, 3]}, "domain": "com.microsoft", "kernel_shape": [2, 2], "strides": [2, 2]}
    assert shapes(one("NhwcMaxPool", "x", **options)) == [["N", "4", "3", "3"]]


def test_maxima_go_back_where_they_came_from(one, shapes) -> None:
    options = {"inputs": {"x": ["N", 3, 4, 4], "i": ["N", 3, 4, 4]}, "dtypes": {"i": 7}, "kernel_shape": [2, 2]}
    assert shapes(one("MaxUnpool", "x i", strides=[2, 2], **options)) == [["N", "3", "8", "8"]]


def test_each_region_has_its_cells(one, shapes) -> None:
    graph = one("MaxRoiPool", "x r", weights={"r": np.zeros((20, 5), np.float32)}, pooled_shape=[6, 7])
    assert shapes(graph)[0][1:] == ["3", "6", "7"]


@pytest.mark.parametrize(
    ("op_type", "attributes", "said"),
    [
        ("MaxPool", {"kernel_shape": [9, 9]}, "does not fit"),
        ("AveragePool", {"kernel_shape": [2]}, "spatial dimensions"),
        ("MaxPool", {}, "kernel shape"),
    ],
)
def test_windows_that_do_not_fit(refused, op_type: str, attributes: dict, said: str) -> None:
    assert said in refused(op_type, "x", **attributes)
