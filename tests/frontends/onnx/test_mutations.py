"""Damaged and hostile models: an error or a graph, nothing else, and quickly."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from dippm.costs.polynomial import numel
from dippm.errors import DippmError
from dippm.frontends.onnx import read_onnx
from dippm.frontends.onnx.ops import known_operators
from dippm.graph import GraphArrays


def model() -> onnx.ModelProto:
    def value(name: str, dtype: int = 1, shape: list[int] | None = None) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, dtype, shape)

    then_branch = helper.make_graph([helper.make_node("Relu", ["g"], ["t"])], "then", [], [value("t")])
    else_branch = helper.make_graph([helper.make_node("Tanh", ["g"], ["e"])], "else", [], [value("e")])
    body = helper.make_graph(
        [helper.make_node("Relu", ["v"], ["vo"]), helper.make_node("Identity", ["ci"], ["co"])],
        "body",
        [value("it", 7, []), value("ci", 9, []), value("v")],
        [value("co", 9, []), value("vo")],
    )
    function = helper.make_function(
        "fn", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 18)]
    )
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Shape", ["p"], ["s"], end=1),
        helper.make_node("Concat", ["s", "m1"], ["sh"], axis=0),
        helper.make_node("Reshape", ["p", "sh"], ["f"]),
        helper.make_node("Gemm", ["f", "fw"], ["g"], transB=1),
        helper.make_node("Slice", ["g", "ax", "two", "ax"], ["sl"]),
        helper.make_node("Tile", ["sl", "reps"], ["o1"]),
        helper.make_node("Split", ["x"], ["sp1", "o2"], axis=2, num_outputs=2),
        helper.make_node("Resize", ["x", "", "", "sizes"], ["o3"]),
        helper.make_node("Einsum", ["g", "fw"], ["o4"], equation="bi,ij->bj"),
        helper.make_node("Transpose", ["x"], ["o5"], perm=[0, 2, 3, 1]),
        helper.make_node("If", ["cond"], ["o6"], then_branch=then_branch, else_branch=else_branch),
        helper.make_node("Loop", ["three", "yes", "g"], ["o7"], body=body),
        helper.make_node("Strange", ["g"], ["o8"], domain="my"),
        helper.make_node("Twice", ["g"], ["o9"], domain="fn"),
    ]
    stored = {
        "w": np.zeros((4, 3, 3, 3), np.float32), "m1": np.array([-1]), "fw": np.zeros((10, 64), np.float32),
        "ax": np.array([0]), "two": np.array([2]), "reps": np.array([2, 3]), "sizes": np.array([1, 3, 16, 16]),
        "three": np.array(3), "yes": np.array(True),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", 1, [1, 3, 8, 8]), value("cond", 9, [])],
        [value(f"o{i}") for i in range(1, 10)],
        [numpy_helper.from_array(data, name) for name, data in stored.items()],
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in (("", 18), ("my", 1), ("fn", 1))]
    return helper.make_model(graph, opset_imports=opsets, functions=[function])


ORIGINAL = model().SerializeToString()
SETTINGS = settings(max_examples=300, deadline=2000, suppress_health_check=list(HealthCheck))


def read_or_refuse(source: bytes | onnx.ModelProto) -> None:
    try:
        graph = read_onnx(source)
        elements = numel(GraphArrays.from_graph(graph))
    except DippmError as error:
        assert error.code
        assert str(error)
    else:
        assert len(elements) == len(graph.tensors)


@SETTINGS
@given(st.lists(st.tuples(st.integers(0, len(ORIGINAL) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_changed_bytes(changes: list[tuple[int, int]]) -> None:
    data = bytearray(ORIGINAL)
    for position, byte in changes:
        data[position] = byte
    read_or_refuse(bytes(data))


@SETTINGS
@given(st.integers(0, len(ORIGINAL)), st.integers(0, 40), st.binary(max_size=20))
def test_replaced_stretch(start: int, length: int, replacement: bytes) -> None:
    read_or_refuse(ORIGINAL[:start] + replacement + ORIGINAL[start + length :])


@SETTINGS
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    read_or_refuse(data)


HOSTILE = st.sampled_from([0, 1, 2, 3, -1, -2, 4, 8, 2**31, 2**40, 2**62, -(2**62)])
ATTRIBUTES = st.dictionaries(
    st.sampled_from(
        [
            "axis", "axes", "perm", "kernel_shape", "strides", "pads", "dilations", "group", "keepdims", "num_outputs",
            "split", "to", "num_heads", "kv_num_heads", "hidden_size", "K", "N", "shape", "num_groups", "batch_dims",
            "blocksize", "output_shape", "output_padding", "layout", "size", "num_scan_inputs",
        ]
    ),
    st.one_of(HOSTILE, st.lists(HOSTILE, min_size=1, max_size=5), st.floats()),
    max_size=4,
)  # fmt: skip
CONSTANT = st.one_of(
    st.lists(HOSTILE, max_size=4).map(lambda values: np.array(values, np.int64)),
    HOSTILE.map(lambda value: np.array(value, np.int64)),
    st.lists(st.floats(width=32), max_size=4).map(lambda values: np.array(values, np.float32)),
    st.lists(st.integers(0, 8), max_size=4).map(lambda shape: np.zeros(shape, np.float32)),
)
INPUT = st.one_of(st.sampled_from(["x", "ids", "", "previous"]), CONSTANT)
STEP = st.tuples(st.sampled_from(known_operators()), st.lists(INPUT, max_size=6), ATTRIBUTES, st.integers(1, 3))


@settings(SETTINGS, max_examples=600)
@given(st.lists(STEP, min_size=1, max_size=4), st.sampled_from([7, 11, 13, 18, 23]))
def test_any_operator_with_any_inputs_and_attributes(steps: list, opset: int) -> None:
    nodes, stored, previous = [], [], "x"
    for number, ((domain, op_type), inputs, attributes, count) in enumerate(steps):
        names = []
        for source in inputs:
            if isinstance(source, str):
                names.append(previous if source == "previous" else source)
            else:
                names.append(f"k{len(stored)}")
                stored.append(numpy_helper.from_array(source, names[-1]))
        outputs = [f"o{number}_{i}" for i in range(count)]
        nodes.append(helper.make_node(op_type, names, outputs, domain=domain, **attributes))
        previous = outputs[0]
    inputs = [
        helper.make_tensor_value_info("x", 1, ["N", 4, 6, 6]),
        helper.make_tensor_value_info("ids", 7, ["N", 4]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info(previous, 1, None)], stored)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    read_or_refuse(helper.make_model(graph, opset_imports=opsets))
