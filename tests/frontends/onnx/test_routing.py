from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.frontends.onnx.routing import EVENLY

EXPERTS = 4
CHOSEN = 2


def chosen() -> list:
    return [helper.make_node("TopK", ["x", "k"], ["scores", "picked"])]


def rows_of(mask: str) -> list:
    return [
        helper.make_node("NonZero", [mask], ["places"]),
        helper.make_node("Gather", ["places", "zero"], ["rows"], axis=0),
        helper.make_node("Gather", ["x", "rows"], ["y"], axis=0),
    ]


WEIGHTS = {
    "k": np.array([CHOSEN]), "zero": np.array(0), "three": np.array(3), "numbers": np.arange(EXPERTS),
    "last": np.array([-1]), "depth": np.array(EXPERTS), "values": np.array([0, 1]),
}  # fmt: skip

BY_EQUAL = [helper.make_node("Equal", ["picked", "three"], ["mask"])]
BY_TABLE = [
    helper.make_node("Unsqueeze", ["picked", "last"], ["apart"]),
    helper.make_node("Equal", ["apart", "numbers"], ["masks"]),
    helper.make_node("Gather", ["masks", "three"], ["mask"], axis=2),
]
BY_ONE_HOT = [
    helper.make_node("OneHot", ["picked", "depth", "values"], ["masks"]),
    helper.make_node("Transpose", ["masks"], ["turned"], perm=[2, 0, 1]),
    helper.make_node("Gather", ["turned", "three"], ["mask"], axis=0),
]
BY_ANY = [
    *BY_EQUAL,
    helper.make_node("Cast", ["mask"], ["whole"], to=TensorProto.INT64),
    helper.make_node("ReduceMax", ["whole"], ["own"], axes=[-1], keepdims=0),
]


@pytest.mark.parametrize(
    ("nodes", "mask"), [(BY_EQUAL, "mask"), (BY_TABLE, "mask"), (BY_ONE_HOT, "mask"), (BY_ANY, "own")]
)
def test_each_expert_gets_an_even_share(read, shape_of, nodes, mask) -> None:
    flat = [helper.make_node("Reshape", ["z", "tokens"], ["x"])]
    weights = {**WEIGHTS, "tokens": np.array([-1, EXPERTS])}
    graph = read([*flat, *chosen(), *nodes, *rows_of(mask)], weights=weights, inputs={"z": ["N", 6, EXPERTS]})
    # Of each sample's 12 choices a quarter are one expert.
    assert shape_of(graph, graph.outputs[0]) == ["3N", "4"]
    assert EVENLY in graph.warnings


@pytest.mark.parametrize(("least", "rows"), [("none", "3N"), ("half", "12N")])
def test_what_is_there_at_all_has_the_share_and_what_is_there_often_may_be_everywhere(
    read, shape_of, least, rows
) -> None:
    flat = [helper.make_node("Reshape", ["z", "tokens"], ["x"])]
    counted = [
        *BY_EQUAL,
        helper.make_node("Cast", ["mask"], ["counts"], to=TensorProto.FLOAT),
        helper.make_node("Greater", ["counts", least], ["own"]),
    ]
    weights = {
        **WEIGHTS, "tokens": np.array([-1, EXPERTS]), "none": np.float32(0), "half": np.float32(0.5),
    }  # fmt: skip
    graph = read([*flat, *chosen(), *counted, *rows_of("own")], weights=weights, inputs={"z": ["N", 6, EXPERTS]})
    assert shape_of(graph, graph.outputs[0]) == [rows, "4"]


def test_other_places_are_all_counted(read, shape_of) -> None:
    nodes = [helper.make_node("Greater", ["x", "half"], ["mask"]), *rows_of("mask")]
    graph = read(nodes, weights={**WEIGHTS, "half": np.array(0.5, dtype=np.float32)}, inputs={"x": ["N", 4]})
    assert shape_of(graph, graph.outputs[0]) == ["4N", "4"]
    assert EVENLY not in graph.warnings


def test_a_number_is_written_as_often_as_its_mask_is_true(read, shape_of) -> None:
    nodes = [
        helper.make_node("Greater", ["x", "half"], ["mask"]),
        helper.make_node("NonZero", ["mask"], ["places"]),
        helper.make_node("Transpose", ["places"], ["turned"]),
        helper.make_node("Reshape", ["mask", "last"], ["flat"]),
        helper.make_node("Cast", ["flat"], ["whole"], to=TensorProto.INT64),
        helper.make_node("ReduceSum", ["whole", "first"], ["count"], keepdims=1),
        helper.make_node("Expand", ["half", "count"], ["updates"]),
        helper.make_node("ScatterND", ["x", "turned", "updates"], ["y"]),
    ]
    weights = {**WEIGHTS, "half": np.array(0.5, dtype=np.float32), "first": np.array([0])}
    graph = read(nodes, weights=weights, inputs={"x": ["N", 4]})
    assert shape_of(graph, graph.outputs[0]) == ["N", "4"]
