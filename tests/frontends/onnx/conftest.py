"""Small ONNX models, built in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dippm.frontends.inputs import parse_input_shapes
from dippm.frontends.onnx import read_onnx
from dippm.graph import Graph, Node

Build = Callable[..., onnx.ModelProto]


def _build(
    nodes: Sequence[onnx.NodeProto],
    *,
    inputs: Mapping[str, Sequence[int | str]] | None = None,
    outputs: Sequence[str] = ("y",),
    weights: Mapping[str, object] | None = None,
    opset: int = 17,
    dtypes: Mapping[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    dtypes = dtypes or {}
    declared = [
        helper.make_tensor_value_info(name, dtypes.get(name, TensorProto.FLOAT), list(shape))
        for name, shape in (inputs or {"x": ["N", 3, 8, 8]}).items()
    ]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    stored = [numpy_helper.from_array(np.asarray(data), name) for name, data in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "model", declared, made, stored)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions))


@pytest.fixture
def build() -> Build:
    """Make a model from nodes, input shapes and weights."""
    return _build


@pytest.fixture
def read(build: Build) -> Callable[..., Graph]:
    """Make a model and read it."""

    def run(nodes: Sequence[onnx.NodeProto], *, given: object = None, **options: object) -> Graph:
        return read_onnx(build(nodes, **options), input=parse_input_shapes(given))

    return run


@pytest.fixture
def shape_of() -> Callable[[Graph, int], list[str]]:
    """A tensor's shape in words, such as ["N", "3"]."""
    return lambda graph, index: [str(dim) for dim in graph.tensors[index].shape]


@pytest.fixture
def kinds() -> Callable[[Graph], list[str]]:
    """Kinds of a graph's nodes in order."""

    def kinds_of(graph: Graph) -> list[str]:
        nodes: tuple[Node, ...] = graph.nodes
        return [node.kind.value for node in nodes]

    return kinds_of


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, dtype=np.float32)
