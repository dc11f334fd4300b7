"""Lists of tensors: they launch nothing until they are joined."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from dippm.errors import ModelReadError

make = helper.make_node


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ({"axis": 1}, ["N", "9", "8"]),
        ({"axis": 0, "new_axis": 1}, ["3", "N", "3", "8"]),
        ({"axis": -1}, ["N", "3", "24"]),
    ],
)
def test_elements_are_joined_or_stacked(read, kinds, shape_of, attributes: dict, shape: list[str]) -> None:
    nodes = [make("SequenceConstruct", ["x", "x", "x"], ["s"]), make("ConcatFromSequence", ["s"], ["y"], **attributes)]
    graph = read(nodes, inputs={"x": ["N", 3, 8]})
    assert kinds(graph) == ["concat"]
    assert shape_of(graph, graph.outputs[0]) == shape


def _list(*changes: object) -> list:
    """A list of the ReLU and the tanh of the input, changed, of which the element at ``at`` is the output."""
    return [
        make("Relu", ["x"], ["r"]),
        make("Tanh", ["x"], ["t"]),
        make("SequenceEmpty", [], ["s0"]),
        make("SequenceInsert", ["s0", "r"], ["s1"]),
        make("SequenceInsert", ["s1", "t"], ["s2"]),
        *changes,
    ]


@pytest.mark.parametrize(("position", "kind"), [(0, "relu"), (1, "tanh"), (-1, "tanh"), (-2, "relu")])
def test_elements_stand_where_they_were_put(read, kinds, position: int, kind: str) -> None:
    graph = read(_list(make("SequenceAt", ["s2", "at"], ["y"])), weights={"at": np.array(position)})
    assert [kinds(graph)[index] for index, node in enumerate(graph.nodes) if graph.outputs[0] in node.outputs] == [kind]


def test_an_element_may_be_put_before_others_and_taken_out(read) -> None:
    nodes = _list(
        make("SequenceInsert", ["s2", "x", "first"], ["s3"]),
        make("SequenceErase", ["s3"], ["s4"]),
        make("SequenceAt", ["s4", "first"], ["y"]),
    )
    graph = read(nodes, weights={"first": np.array(0)})
    assert graph.outputs == graph.inputs


def test_the_length_is_a_number_of_the_code(read, kinds, shape_of) -> None:
    nodes = _list(
        make("SequenceLength", ["s2"], ["n"]),
        make("Unsqueeze", ["n", "zero"], ["n1"]),
        make("Concat", ["n1", "rest"], ["sizes"], axis=0),
        make("Reshape", ["x", "sizes"], ["y"]),
    )
    graph = read(nodes, weights={"zero": np.array([0]), "rest": np.array([-1, 4])}, inputs={"x": ["N", 8]})
    assert shape_of(graph, graph.outputs[0]) == ["2", "N", "4"]


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([make("SequenceAt", ["s2", "at"], ["y"])], "does not exist"),
        ([make("SequenceAt", ["s0", "at"], ["y"])], "empty"),
        ([make("SequenceAt", ["x", "at"], ["y"])], "sequence"),
        ([make("ConcatFromSequence", ["s0"], ["y"], axis=0)], "empty"),
        ([make("SequenceErase", ["s0"], ["e"]), make("SequenceAt", ["e", "at"], ["y"])], "empty"),
    ],
)
def test_what_is_not_in_the_list(read, nodes: list, said: str) -> None:
    with pytest.raises(ModelReadError, match=said) as caught:
        read(_list(*nodes), weights={"at": np.array(2)})
    assert caught.value.code == "onnx.shape"


@pytest.mark.parametrize(("new_axis", "rows"), [(0, ["3", "4", "3", "4"]), (1, ["3", "4", "3", "4"])])
def test_known_numbers_that_are_joined_are_known(read, shape_of, new_axis: int, rows: list[str]) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"], start=1),
        helper.make_node("SequenceConstruct", ["sizes", "sizes"], ["both"]),
        helper.make_node("ConcatFromSequence", ["both"], ["joined"], axis=0, new_axis=new_axis),
        helper.make_node("Reshape", ["joined", "flat"], ["row"]),
        helper.make_node("Expand", ["one", "row"], ["y"]),
    ]
    weights = {"flat": np.array([-1]), "one": np.zeros(1, np.float32)}
    graph = read(nodes, weights=weights, inputs={"x": ["N", 3, 4]})
    assert shape_of(graph, graph.outputs[0]) == rows
