"""Weights that several layers share. Runs in the converter's process.

tf2onnx writes a constant for each reader of a variable. Those of one variable become one again; equal values alone are
no reason, since fresh biases are all zero and copies of a network are weights of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dippm.frontends.tensorflow.graph_rewrites import node_name

__all__ = ["find_variables", "merge_shared"]

_COUNTED = re.compile(r"__\d+$")


def find_variables(graph_def: Any) -> dict[str, str]:
    """For each node that hands on what a constant holds the name of that constant."""
    handed = {node.name: node_name(node.input[0]) for node in graph_def.node if node.op == "Identity"}
    stored = {node.name for node in graph_def.node if node.op == "Const"}
    found = {}
    for name in handed:
        source, seen = name, {name}
        while source in handed and handed[source] not in seen:
            source = handed[source]
            seen.add(source)
        if source in stored:
            found[name] = source
    return found


def merge_shared(graph: Any, variables: Mapping[str, str]) -> None:
    """Have the readers of a variable share a constant, where tf2onnx has brought them into the same form.

    Args:
        graph: tf2onnx's graph.
        variables: What :func:`find_variables` found in the graph that it was made from.
    """
    first: dict[tuple[str, tuple[int, ...], str], Any] = {}
    for node in list(graph.get_nodes()):
        variable = variables.get(_COUNTED.sub("", node.name))
        if variable is None or not node.is_const():
            continue
        value = node.get_tensor_value(as_list=False)
        kept = first.setdefault((variable, value.shape, str(value.dtype)), node)
        if kept is not node and kept.get_tensor_value(as_list=False).tobytes() == value.tobytes():
            graph.replace_all_inputs(node.output[0], kept.output[0])
            graph.remove_node(node.name)
