"""Constants of one variable become one; TensorFlow itself is not needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from dippm.frontends.tensorflow.shared_weights import find_variables, merge_shared


def node(name: str, op: str, *inputs: str) -> Any:
    return SimpleNamespace(name=name, op=op, input=inputs)


class Constant:
    """A constant as tf2onnx has it."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.output, self._value = name, [f"{name}:0"], np.asarray(value)

    def is_const(self) -> bool:
        return True

    def get_tensor_value(self, *, as_list: bool) -> Any:
        assert not as_list
        return self._value


class Graph:
    """What is used of tf2onnx's graph."""

    def __init__(self, *nodes: Constant) -> None:
        self.nodes, self.replaced = list(nodes), {}

    def get_nodes(self) -> list[Constant]:
        return self.nodes

    def replace_all_inputs(self, old: str, new: str) -> None:
        self.replaced[old] = new

    def remove_node(self, name: str) -> None:
        self.nodes[:] = [node for node in self.nodes if node.name != name]


def test_what_hands_on_a_constant_is_followed_to_it() -> None:
    graph = SimpleNamespace(
        node=[
            node("w", "Const"),
            node("input", "Identity", "w:0"),
            node("a/read", "Identity", "input"),
            node("b/read", "Identity", "input:0", "^other"),
            node("x", "Placeholder"),
            node("y", "Identity", "x"),
            node("round", "Identity", "about"),
            node("about", "Identity", "round"),
        ]
    )
    assert find_variables(graph) == {"input": "w", "a/read": "w", "b/read": "w"}


def test_readers_of_one_variable_in_one_form_share_it() -> None:
    weight = np.arange(6.0).reshape(2, 3)
    graph = Graph(
        Constant("a__1", weight),
        Constant("b__2", weight),
        Constant("turned__3", weight.T.reshape(2, 3)),
        Constant("other__4", weight),
        Constant("unknown__5", weight),
        Constant("wide__6", weight.astype(np.float32)),
    )
    variables = {"a": "w", "b": "w", "turned": "w", "wide": "w", "other": "v"}
    merge_shared(graph, variables)
    assert graph.replaced == {"b__2:0": "a__1:0"}
    assert [each.name for each in graph.nodes] == ["a__1", "turned__3", "other__4", "unknown__5", "wide__6"]
