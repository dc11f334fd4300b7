from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from onnx import helper

from dippm.frontends.onnx import read_onnx


def chain(build, length: int) -> onnx.ModelProto:
    nodes, current = [], "x"
    for number in range(length):
        op_type = ("Conv", "Relu", "Sigmoid", "Transpose", "Add")[number % 5]
        inputs = [current, "w"] if op_type == "Conv" else [current, current] if op_type == "Add" else [current]
        attributes = {"perm": [0, 1, 3, 2]} if op_type == "Transpose" else {}
        nodes.append(helper.make_node(op_type, inputs, [f"t{number}"], **attributes))
        current = f"t{number}"
    return build(nodes, weights={"w": np.zeros((3, 3, 1, 1), np.float32)}, outputs=[current])


def seconds(model: onnx.ModelProto) -> float:
    start = time.process_time()
    read_onnx(model)
    return time.process_time() - start


def test_time_grows_linearly(build) -> None:
    small, large = chain(build, 1_000), chain(build, 10_000)
    seconds(small)
    ratio = min(seconds(large) for _ in range(2)) / min(seconds(small) for _ in range(3))
    assert ratio < 25


@pytest.mark.slow
def test_a_hundred_thousand_nodes(build) -> None:
    graph = read_onnx(chain(build, 100_000))
    assert len(graph.nodes) >= 100_000


def test_depth_is_no_recursion(build) -> None:
    model = chain(build, 5_000)
    model.graph.node.sort(key=lambda node: node.output[0])  # far out of order
    assert len(read_onnx(model).nodes) >= 5_000


def test_many_readers_of_one_tensor(build) -> None:
    count = 5_000
    nodes = [helper.make_node("Sigmoid", ["x"], [f"s{i}"]) for i in range(count)]
    nodes += [helper.make_node("Mul", ["x", f"s{i}"], [f"m{i}"]) for i in range(count)]
    nodes.append(helper.make_node("Sum", [f"m{i}" for i in range(count)], ["y"]))
    graph = read_onnx(build(nodes))
    assert sum(node.kind.value == "silu" for node in graph.nodes) == count
