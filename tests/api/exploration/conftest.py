"""A small space of perceptrons, written with ONNX so that no test has to import PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

SPACE = """
import onnx
from onnx import TensorProto, helper

CHOICES = {
    "depth": range(1, 9),
    "width": range(16, 257, 16),
    "kind": ["Relu", "Gelu", "none"],
    "repeats": {"from": 1, "to": 3, "if": {"kind": ["Relu", "Gelu"]}},
}
TOO_WIDE = 10**9


def model(choices):
    width = choices["width"]
    if width > TOO_WIDE:
        raise ValueError("too wide")
    nodes, weights, last = [], [], "x"
    for layer in range(choices["depth"]):
        rows = 256 if layer == 0 else width
        values = bytes(4 * rows * width)
        weights.append(helper.make_tensor(f"w{layer}", TensorProto.FLOAT, (rows, width), values, raw=True))
        nodes.append(helper.make_node("MatMul", [last, f"w{layer}"], [f"m{layer}"]))
        last = f"m{layer}"
        for again in range(choices.get("repeats", 0)):
            nodes.append(helper.make_node(choices["kind"], [last], [f"a{layer}_{again}"]))
            last = f"a{layer}_{again}"
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 256])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, ["batch", width])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def score(choices, prediction):
    return choices["depth"] * choices["width"] + 10 * choices.get("repeats", 0)
"""


@pytest.fixture(name="space_file")
def _space_file(tmp_path: Path) -> Path:
    path = tmp_path / "perceptrons.py"
    path.write_text(SPACE)
    return path
