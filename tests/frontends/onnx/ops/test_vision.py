from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from dippm.errors import ModelReadError
from dippm.graph import DType, OpKind


@pytest.mark.parametrize(
    ("weights", "names", "attributes", "shape"),
    [
        ({"s": np.array([1, 1, 2, 2.5], np.float32)}, "x - s", {}, ["N", "3", "16", "20"]),
        ({"s": np.array([1, 3, 5, 6])}, "x - - s", {}, ["N", "3", "5", "6"]),
        ({"s": np.array([5, 6])}, "x - - s", {"axes": [2, 3]}, ["N", "3", "5", "6"]),
        (
            {"s": np.array([4, 16])},
            "x - - s",
            {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
            ["N", "3", "4", "4"],
        ),
        (
            {"s": np.array([4, 16])},
            "x - - s",
            {"axes": [2, 3], "keep_aspect_ratio_policy": "not_smaller"},
            ["N", "3", "16", "16"],
        ),
    ],
)
def test_another_size_by_scale_or_by_target(one, shapes, weights, names, attributes, shape: list[str]) -> None:
    inputs = {"x": [1, 3, 8, 8]}
    graph = one("Resize", names, inputs=inputs, weights=weights, opset=18, mode="linear", **attributes)
    assert (graph.nodes[0].kind, graph.nodes[0].attributes["mode"]) == (OpKind.RESIZE, "linear")
    assert shapes(graph) == [shape]


def test_the_same_size_launches_nothing(one) -> None:
    assert one("Upsample", "x s", weights={"s": np.ones(4, np.float32)}, opset=9).nodes == ()


@pytest.mark.parametrize(
    ("op_type", "names", "sizes", "attributes", "shape"),
    [
        ("GridSample", "x g", {"g": ["N", 5, 6, 2]}, {}, ["N", "3", "5", "6"]),
        (
            "RoiAlign",
            "x r b",
            {"r": ["N", 4], "b": ["N"]},
            {"output_height": 7, "output_width": 5},
            ["N", "3", "7", "5"],
        ),
    ],
)
def test_the_input_at_given_points(one, shapes, op_type, names, sizes, attributes, shape: list[str]) -> None:
    inputs = {"x": ["N", 3, 8, 8], **sizes}
    graph = one(op_type, names, inputs=inputs, dtypes={"b": 7}, **attributes)
    assert graph.nodes[0].kind is OpKind.GRID_SAMPLE
    assert shapes(graph) == [shape]


def test_points_of_an_affine_map(one, shapes) -> None:
    options = {"inputs": {"t": [2, 2, 3]}, "weights": {"s": np.array([2, 3, 5, 6])}, "opset": 20}
    assert shapes(one("AffineGrid", "t s", **options))[0][1:] == ["5", "6", "2"]


def test_boxes_are_bounded_by_what_is_let_through(one, shapes) -> None:
    options = {"inputs": {"b": ["N", 100, 4], "s": ["N", 5, 100]}}
    graph = one("NonMaxSuppression", "b s most", weights={"most": np.array(20)}, **options)
    assert shapes(graph) == [["100N", "3"]]
    assert graph.tensors[graph.outputs[0]].dtype is DType.INT64
    assert "NonMaxSuppression" in graph.warnings[0]
    assert shapes(one("NonMaxSuppression", "b s", **options)) == [["500N", "3"]]


def test_columns_are_added_up_to_an_image(one, shapes, refused) -> None:
    weights = {"image": np.array([8, 8]), "block": np.array([2, 3])}
    graph = one("Col2Im", "x image block", inputs={"x": ["N", 18, 42]}, weights=weights, opset=18)
    assert shapes(graph) == [["N", "3", "8", "8"]]
    assert refused("Col2Im", "x image block", inputs={"x": ["N", 20, 42]}, weights=weights, opset=18)


@pytest.mark.parametrize(
    ("scale", "said"), [([1, 1, 2], "do not fit"), ([1, 1, -2, 2], "positive"), ([1, 1, np.inf, 2], "positive")]
)
def test_scales_that_are_none(refused, scale: list[float], said: str) -> None:
    assert said in refused("Resize", "x - s", weights={"s": np.array(scale, np.float32)}, opset=18)


def test_an_image_inside_a_file_has_no_size(read) -> None:
    node = helper.make_node("ImageDecoder", ["x"], ["y"])
    with pytest.raises(ModelReadError, match="only known at run time"):
        read([node], inputs={"x": ["n"]}, dtypes={"x": 2}, opset=20)
