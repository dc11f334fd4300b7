"""Loops that may be recurrent layers say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

make = helper.make_node


def value(name: str, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, None)


@pytest.mark.parametrize(("steps", "is_learned", "is_said"), [(6, True, True), (6, False, False), (1, True, False)])
@pytest.mark.parametrize("op_type", ["Loop", "Scan"])
def test_a_recurrent_layer_that_was_taken_apart_is_named(
    read: Any, op_type: str, steps: int, is_learned: bool, is_said: bool
) -> None:
    step = make("MatMul", ["h", "w"], ["p"]) if is_learned else make("Relu", ["h"], ["p"])
    weights: dict[str, Any] = {"w": np.ones((4, 4), dtype=np.float32)}
    if op_type == "Scan":
        nodes = [step, make("Add", ["p", "s"], ["n"])]
        body = helper.make_graph(nodes, "body", [value("h"), value("s")], [value("n")])
        node = make("Scan", ["h0", "x"], ["y"], num_scan_inputs=1, body=body)
    else:
        nodes = [step, make("Tanh", ["p"], ["n"]), make("Identity", ["go"], ["on"])]
        inputs = [value("i", TensorProto.INT64), value("go", TensorProto.BOOL), value("h")]
        body = helper.make_graph(nodes, "body", inputs, [value("on", TensorProto.BOOL), value("n")])
        node = make("Loop", ["limit", "", "h0"], ["y"], body=body)
        weights["limit"] = np.array(steps)
    graph = read([node], inputs={"h0": ["N", 4], "x": [steps, "N", 4]}, weights=weights)
    assert any("step by step" in warning for warning in graph.warnings) == is_said
