from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from dippm.costs.workload import Workload
from dippm.graph import OpKind


def test_uneven_padding_is_an_operator_of_its_own(read, kinds, shape_of) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[2, 2])
    graph = read([node], weights={"w": np.zeros((4, 3, 3, 3), np.float32)})
    assert kinds(graph) == ["pad", "conv"]
    assert shape_of(graph, graph.outputs[0]) == ["N", "4", "4", "4"]
    assert graph.nodes[1].attributes["padding"] == (0, 0)


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ({}, ["N", "6", "14", "10"]),
        ({"pads": [1, 1, 1, 1]}, ["N", "6", "16", "12"]),
        ({"pads": [2, 1, 2, 1], "strides": [2, 3]}, ["N", "6", "9", "4"]),
        ({"dilations": [3, 2]}, ["N", "6", "10", "8"]),
        ({"auto_pad": "SAME_UPPER", "strides": [2, 2]}, ["N", "6", "8", "6"]),
        ({"auto_pad": "VALID", "pads": [0, 0, 0, 0]}, ["N", "6", "14", "10"]),
    ],
)
def test_sizes_of_a_convolution(one, shapes, attributes: dict, shape: list[str]) -> None:
    weights = {"w": np.zeros((6, 4, 3, 3), np.float32)}
    graph = one("Conv", "x w", inputs={"x": ["N", 4, 16, 12]}, weights=weights, **attributes)
    assert shapes(graph) == [shape]
    convolution = graph.nodes[-1]
    assert convolution.attributes["kernel"] == (3, 3)
    assert convolution.attributes["groups"] == 1


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ({"strides": [2, 2]}, ["N", "6", "17", "9"]),
        ({"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}, ["N", "6", "16", "8"]),
        ({"strides": [2, 2], "output_shape": [16, 8]}, ["N", "6", "16", "8"]),
        ({"strides": [3, 3], "auto_pad": "SAME_UPPER"}, ["N", "6", "24", "12"]),
        ({"dilations": [2, 2]}, ["N", "6", "12", "8"]),
    ],
)
def test_sizes_of_a_transposed_convolution(one, shapes, attributes: dict, shape: list[str]) -> None:
    weights = {"w": np.zeros((4, 3, 3, 3), np.float32)}
    graph = one("ConvTranspose", "x w", inputs={"x": ["N", 4, 8, 4]}, weights=weights, group=2, **attributes)
    assert shapes(graph) == [shape]
    assert graph.nodes[-1].kind is OpKind.CONV_TRANSPOSE


def test_an_activation_at_the_end_is_an_operator_of_its_own(one) -> None:
    weights = {"w": np.zeros((3, 3, 1, 1), np.float32)}
    for activation, kind in (("Relu", OpKind.RELU), ("HardSwish", OpKind.HARD_SWISH), ("Strange", OpKind.UNARY)):
        graph = one("FusedConv", "x w - x", weights=weights, domain="com.microsoft", activation=activation)
        assert [node.kind for node in graph.nodes] == [OpKind.CONV, OpKind.ADD, kind]


def test_learned_offsets_are_sampled_and_multiplied(one, shapes) -> None:
    weights = {"w": np.zeros((6, 3, 3, 3), np.float32)}
    inputs = {"x": ["N", 3, 8, 8], "o": ["N", 18, 6, 6]}
    graph = one("DeformConv", "x w o", inputs=inputs, weights=weights, opset=19)
    assert shapes(graph) == [["N", "6", "6", "6"]]
    assert Workload.from_graph(graph).at([1]).macs.sum() == 6 * 36 * 27


@pytest.mark.parametrize(
    ("weight", "attributes", "said"),
    [
        ((6, 4, 3, 3), {}, "3 channels"),
        ((6, 3, 9, 9), {}, "does not fit"),
        ((6, 1, 3, 3), {"group": 2}, "groups"),
        ((6, 3, 3, 3), {"strides": [0, 1]}, "not positive"),
        ((6, 3, 3, 3), {"pads": [1, 1]}, "spatial dimensions"),
    ],
)
def test_what_no_convolution_can_be(refused, weight: tuple[int, ...], attributes: dict, said: str) -> None:
    assert said in refused("Conv", "x w", weights={"w": np.zeros(weight, np.float32)}, **attributes)
