"""Layers on quantised tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from dippm.costs.workload import Workload
from dippm.frontends.onnx import read_onnx

NUMBER = np.array(0.1, dtype=np.float32)
ZERO = np.array(0, dtype=np.uint8)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_quantised_convolution_in_either_order(build: Any, is_last: bool, has_bias: bool) -> None:
    names = ["x", "s", "z", "k", "s", "z", "s", "z", *(["b"] if has_bias else [])]
    attributes = {"channels_last": 1} if is_last else {}
    node = helper.make_node(
        "QLinearConv", names, ["y"], domain="com.microsoft", strides=[2, 2], pads=[1, 1, 1, 1], **attributes
    )
    weights = {"s": NUMBER, "z": ZERO, "k": np.ones((16, 8, 3, 3), dtype=np.uint8)}
    if has_bias:
        weights["b"] = np.ones(16, dtype=np.int32)
    model = build(
        [node],
        inputs={"x": ["N", 12, 10, 8] if is_last else ["N", 8, 12, 10]},
        weights=weights,
        dtypes={"x": TensorProto.UINT8},
        domains=["com.microsoft"],
    )
    graph = read_onnx(model)
    assert [str(dim) for dim in graph.tensors[graph.outputs[0]].shape] == (
        ["N", "6", "5", "16"] if is_last else ["N", "16", "6", "5"]
    )
    assert Workload.from_graph(graph).at([2]).macs.sum() == 2 * 16 * 6 * 5 * 8 * 9
    assert graph.parameter_count == 16 * 8 * 9 + 16 * has_bias
    kinds = [node.kind.value for node in graph.nodes]
    assert kinds.count("conv") == 1
    assert "copy" not in kinds
