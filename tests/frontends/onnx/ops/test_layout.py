from __future__ import annotations

import numpy as np
import pytest
from onnx import helper


def test_select_and_slice_are_views(read, kinds) -> None:
    nodes = [
        helper.make_node("Gather", ["x", "zero"], ["s"], axis=1),
        helper.make_node("Slice", ["s", "zero1", "two", "one1"], ["y"]),
    ]
    weights = {"zero": np.array(0), "zero1": np.array([0]), "two": np.array([2]), "one1": np.array([1])}
    graph = read(nodes, weights=weights)
    assert kinds(graph) == ["view", "view"]
    assert graph.tensors[graph.outputs[0]].alias_of == graph.inputs[0]


def test_dropout_and_identity_launch_nothing(read, kinds) -> None:
    nodes = [
        helper.make_node("Dropout", ["x"], ["d"]),
        helper.make_node("Identity", ["d"], ["i"]),
        helper.make_node("Relu", ["i"], ["y"]),
    ]
    assert kinds(read(nodes)) == ["relu"]


@pytest.mark.parametrize(
    ("target", "attributes", "shape"),
    [
        ([0, -1], {}, ["N", "192"]),
        ([-1, 8], {}, ["24N", "8"]),
        ([0, 0, 64], {}, ["N", "3", "64"]),
        ([-1, 3, 4, 2, 8], {}, ["N", "3", "4", "2", "8"]),
    ],
)
def test_the_same_elements_under_other_sizes(one, shapes, target: list[int], attributes: dict, shape) -> None:
    graph = one("Reshape", "x s", weights={"s": np.array(target)}, **attributes)
    assert shapes(graph) == [shape]
    assert graph.tensors[graph.outputs[0]].alias_of == graph.inputs[0]


@pytest.mark.parametrize(
    ("op_type", "attributes", "shape"),
    [
        ("Flatten", {"axis": 2}, ["3N", "64"]),
        ("Flatten", {"axis": -1}, ["24N", "8"]),
        ("Transpose", {}, ["8", "8", "3", "N"]),
        ("Transpose", {"perm": [0, 2, 3, 1]}, ["N", "8", "8", "3"]),
    ],
)
def test_views_by_attributes(one, shapes, op_type: str, attributes: dict, shape: list[str]) -> None:
    graph = one(op_type, "x", **attributes)
    assert shapes(graph) == [shape]
    assert [node.kind.value for node in graph.nodes] == ["view"]


def test_dimensions_of_one_come_and_go(one, shapes) -> None:
    assert shapes(one("Unsqueeze", "x a", weights={"a": np.array([1, -1])})) == [["N", "1", "3", "8", "8", "1"]]
    options = {"inputs": {"x": ["N", 1, 8, 1]}}
    assert shapes(one("Squeeze", "x a", weights={"a": np.array([-1])}, **options)) == [["N", "1", "8"]]
    assert shapes(one("Squeeze", "x", **options)) == [["N", "8"]]  # the batch is no dimension of one


@pytest.mark.parametrize(
    ("outputs", "attributes", "weights", "shape"),
    [
        (2, {"axis": 2}, None, [["N", "3", "4", "8"]] * 2),
        (2, {"axis": -1}, [3, 5], [["N", "3", "8", "3"], ["N", "3", "8", "5"]]),
        (3, {"axis": 3, "num_outputs": 3}, None, [["N", "3", "8", "3"], ["N", "3", "8", "3"], ["N", "3", "8", "2"]]),
    ],
)
def test_pieces_are_views_of_one_operator(one, shapes, outputs: int, attributes: dict, weights, shape) -> None:
    given = {} if weights is None else {"s": np.array(weights)}
    graph = one(
        "Split",
        "x" + " s" * len(given),
        weights=given,
        outputs=[f"y{i}" for i in range(outputs)],
        opset=18,
        **attributes,
    )
    assert shapes(graph) == shape
    assert len(graph.nodes) == 1


@pytest.mark.parametrize(
    ("start", "end", "axis", "step", "kind", "size"),
    [
        (1, 5, 2, 1, "view", "4"),
        (-3, 2**62, 2, 1, "view", "3"),
        (0, 8, 3, 3, "view", "3"),
        (7, -(2**62), 2, -1, "copy", "8"),
        (6, 2, 2, 1, "view", "0"),
    ],
)
def test_part_of_a_tensor(one, start, end, axis, step, kind: str, size: str) -> None:
    weights = {name: np.array([number]) for name, number in zip("seat", (start, end, axis, step), strict=True)}
    graph = one("Slice", "x s e a t", weights=weights)
    assert [node.kind.value for node in graph.nodes] == [kind]
    assert str(graph.tensors[graph.outputs[0]].shape[axis]) == size


def test_expanding_copies_nothing(one, shapes) -> None:
    graph = one("Expand", "x s", inputs={"x": ["N", 1, 8]}, weights={"s": np.array([5, 1])})
    assert shapes(graph) == [["N", "5", "8"]]
    assert [node.kind.value for node in graph.nodes] == ["view"]


def test_tensors_one_after_another(one, refused, shapes) -> None:
    inputs = {"x": ["N", 3, 8], "z": ["N", 4, 8]}
    graph = one("Concat", "x z x", inputs=inputs, axis=-2)
    assert shapes(graph) == [["N", "10", "8"]]
    assert graph.nodes[0].attributes["axis"] == 1
    assert "dimension 1" in refused("Concat", "x z", inputs=inputs, axis=2)


def test_a_triangle_is_an_operator(one) -> None:
    (node,) = one("Trilu", "x").nodes
    assert node.attributes["function"] == "trilu"


@pytest.mark.parametrize(
    ("op_type", "weights", "attributes", "said"),
    [
        ("Reshape", [7, 5], {}, "do not fill"),
        ("Reshape", [-1, -1], {}, "more than one dimension open"),
        ("Reshape", [-2, 8], {}, "negative"),
        ("Squeeze", [1], {}, "size 1"),
        ("Unsqueeze", [1, 1], {}, "repeat"),
        ("Expand", [5, 8], {}, ""),
        ("Transpose", None, {"perm": [0, 1, 1, 2]}, "no order"),
        ("Flatten", None, {"axis": 7}, "does not exist"),
        ("Split", [3, 4], {"axis": 2}, "do not make up"),
    ],
)
def test_what_cannot_be_rearranged(refused, op_type: str, weights, attributes: dict, said: str) -> None:
    given = {} if weights is None else {"w": np.array(weights)}
    assert said in refused(op_type, "x" + " w" * len(given), weights=given, **attributes)
