"""Inputs of one number whose value the caller gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.errors import UsageError
from dippm.frontends.inputs import parse_input_shapes
from dippm.frontends.onnx import read_onnx
from dippm.graph import MOST_RUNS

make, info = helper.make_node, helper.make_tensor_value_info


def loop(build: Any, *, limit: list[int] | None = None) -> Any:
    """A loop of as many rounds as an input says."""
    body = helper.make_graph(
        [make("Relu", ["v"], ["out"]), make("Identity", ["go"], ["again"])],
        "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("v", TensorProto.FLOAT, None)],
        [info("again", TensorProto.BOOL, []), info("out", TensorProto.FLOAT, None)],
    )
    node = make("Loop", ["rounds", "", "x"], ["y"], body=body)
    inputs = {"x": ["N", 3], "rounds": [] if limit is None else limit}
    return build([node], inputs=inputs, dtypes={"rounds": TensorProto.INT64})


@pytest.mark.parametrize("limit", [[], [1]])
@pytest.mark.parametrize("given", [{"rounds": 5}, "rounds==5", ["x=3", "rounds==5"], {"rounds": 5.0}])
def test_a_loop_runs_as_often_as_the_caller_says(build: Any, kinds: Any, given: object, limit: list[int]) -> None:
    graph = read_onnx(loop(build, limit=limit), input=parse_input_shapes(given))
    assert kinds(graph) == ["relu"] * 5
    assert [graph.tensors[index].name for index in graph.inputs] == ["x"]
    assert graph.warnings == ()
    assert all(MOST_RUNS not in node.attributes for node in graph.nodes)
    assert graph.fixed_batch is None


def test_without_the_value_the_loop_is_open(build: Any, kinds: Any) -> None:
    graph = read_onnx(loop(build))
    assert kinds(graph) == ["relu"]
    assert len(graph.inputs) == 2


def test_the_number_of_what_is_selected_may_be_given(build: Any) -> None:
    model = build(
        [make("TopK", ["x", "k"], ["y", "places"])],
        inputs={"x": ["N", 100], "k": [1]},
        dtypes={"k": TensorProto.INT64},
    )
    graph = read_onnx(model, input=parse_input_shapes({"k": 7}))
    assert [str(dim) for dim in graph.tensors[graph.outputs[0]].shape] == ["N", "7"]


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ({"rounds": 1.5}, "input.value", "type int64"),
        ({"rounds": 2**63}, "input.value", "type int64"),
        ({"rounds": float("nan")}, "input.value", "type int64"),
        ({"x": 1}, "input.value", "the shape of 'x' is N, 3"),
        ({"round": 5}, "input.name_unknown", "no input 'round'"),
        ({"rounds": "=five"}, "input.nested", "Got the value 'five'"),
        ({"x": {"left": (3,)}, "rounds": 5}, "input.nested", "side by side"),
    ],
)
def test_what_no_input_can_hold_is_refused(build: Any, given: Any, code: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        read_onnx(loop(build), input=parse_input_shapes(given))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("dtype", "value", "is_held"),
    [
        (TensorProto.FLOAT, 0.5, True),
        (TensorProto.FLOAT, 10**400, False),
        (TensorProto.INT64, 10**400, False),
        (TensorProto.BOOL, True, True),
        (TensorProto.BOOL, 2, False),
        (TensorProto.UINT8, 256, False),
        (TensorProto.UINT8, 255, True),
    ],
)
def test_types(build: Any, dtype: int, value: float, *, is_held: bool) -> None:
    nodes = [make("Cast", ["s"], ["f"], to=TensorProto.FLOAT), make("Mul", ["x", "f"], ["y"])]
    model = build(nodes, inputs={"x": ["N", 3], "s": []}, dtypes={"s": dtype})
    given = parse_input_shapes({"s": value})
    if is_held:
        (node,) = read_onnx(model, input=given).nodes
        assert node.attributes["scalar"] == float(np.float32(value))
    else:
        with pytest.raises(UsageError, match="holds a number of type"):
            read_onnx(model, input=given)
