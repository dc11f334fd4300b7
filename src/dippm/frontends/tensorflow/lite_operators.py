"""Operators of TensorFlow Lite that tf2onnx lacks or writes otherwise. Runs in the converter's process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

__all__ = ["LITE_HANDLERS", "widen_stored"]

_CUBIC = 0.044715


def widen_stored(graph: Any) -> None:
    """Store in full width what is stored in half and cast before it is used.

    TensorFlow Lite's interpreter does that once, when it first runs, and keeps the result.

    Args:
        graph: tf2onnx's graph of a file.
    """
    types = import_module("onnx").TensorProto
    for node in list(graph.get_nodes()):
        if node.type != "Cast" or not node.inputs[0].is_const() or node.get_attr_int("to") != types.FLOAT:
            continue
        if graph.get_dtype(node.input[0]) == types.FLOAT16:
            value = node.inputs[0].get_tensor_value(as_list=False).astype("float32")
            _replace(graph, node, graph.make_const(import_module("tf2onnx.utils").make_name(node.name), value))


def _write_variable(graph: Any, node: Any, _name: str, _args: object) -> None:
    """``READ_VARIABLE``: what a file keeps beside its constants, whose shape is all that counts."""
    shape = graph.get_shape(node.output[0])
    if shape is None or min(shape, default=1) < 0:
        raise ValueError(f"the variable {node.input[0]} has no known shape")
    kind = import_module("tf2onnx.utils").map_onnx_to_numpy_type(graph.get_dtype(node.output[0]))
    name = f"{node.input[0]}/stored"
    stored = graph.get_node_by_name(name) or graph.make_const(name, import_module("numpy").zeros(shape, kind))
    _replace(graph, node, stored)


def _write_handle(graph: Any, node: Any, _name: str, _args: object) -> None:
    """``VAR_HANDLE``: which variable is meant, which is a number to nobody and is handed into loops."""
    helper, numpy_helper = (import_module(f"onnx.{name}") for name in ("helper", "numpy_helper"))
    number = numpy_helper.from_array(import_module("numpy").zeros((), "int32"))
    graph.remove_node(node.name)
    graph.make_node(
        "Constant",
        [],
        name=node.name,
        outputs=node.output,
        attr={"value": number},
        dtypes=[helper.TensorProto.INT32],
        shapes=[[]],
    )


def _write_gelu(graph: Any, node: Any, _name: str, _args: object) -> None:
    """``GELU``, exact or by a tangent."""
    x, kind, shape = node.input[0], graph.get_dtype(node.input[0]), graph.get_shape(node.output[0])

    def add(op: str, *inputs: str | float, **settings: Any) -> str:
        names = [each if isinstance(each, str) else _number(graph, each, kind) for each in inputs]
        return str(graph.make_node(op, names, dtypes=[kind], shapes=[shape], **settings).output[0])

    if node.get_attr_value("approximate"):
        cubic = add("Mul", add("Mul", add("Mul", x, x), x), _CUBIC)
        bent = add("Tanh", add("Mul", add("Add", x, cubic), math.sqrt(2 / math.pi)))
    else:
        bent = add("Erf", add("Mul", x, math.sqrt(0.5)))
    half = add("Mul", x, 0.5)
    raised = add("Add", bent, 1.0)
    graph.remove_node(node.name)
    add("Mul", half, raised, name=node.name, outputs=node.output)


def _number(graph: Any, value: float, kind: int) -> str:
    utils = import_module("tf2onnx.utils")
    array = import_module("numpy").array(value, utils.map_onnx_to_numpy_type(kind))
    return str(graph.make_const(utils.make_name("lite"), array).output[0])


def _replace(graph: Any, node: Any, constant: Any) -> None:
    """Let a constant take a node's place."""
    graph.replace_all_inputs(node.output[0], constant.output[0])
    graph.remove_node(node.name)


# What tf2onnx takes as ``custom_op_handlers``.
LITE_HANDLERS: Mapping[str, tuple[Callable[[Any, Any, str, object], None], list[object]]] = MappingProxyType(
    {
        "TFL_GELU": (_write_gelu, []),
        "TFL_READ_VARIABLE": (_write_variable, []),
        "TFL_VAR_HANDLE": (_write_handle, []),
    }
)
