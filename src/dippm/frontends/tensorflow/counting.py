"""Counts of categories, written by their number. Runs in the converter's process.

tf2onnx sorts what is counted and lets the largest category found say how many there are, though TensorFlow knows that
from the layer: the size of what a ``CategoryEncoding`` makes would hang on the values that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

__all__ = ["COUNTING_HANDLERS"]

# As TensorFlow and as ONNX call them: a handler may come before or behind the conversion of what it reads.
_PASSED_ON = frozenset({"Cast", "Identity"})
_LEAST = frozenset({"Minimum", "Min"})


def _write_counts(graph: Any, node: Any, _name: str, _args: object) -> None:
    """``DenseBincount`` and ``Bincount``: a row of one and zeros for each value, and the sum or largest of these."""
    counted, size = graph.get_shape(node.input[0]), _size(node.inputs[1])
    if not counted or size is None:
        import_module("tf2onnx.onnx_opset.tensor").Bincount.any_version(graph.opset, graph, node)
        return
    kind, axis = graph.get_dtype(node.output[0]), len(counted) - 1
    is_binary = bool(node.get_attr_value("binary_output", False))
    numpy, utils = import_module("numpy"), import_module("tf2onnx.utils")

    def constant(values: Any) -> str:
        return str(graph.make_const(utils.make_name(node.name), values).output[0])

    depth = constant(numpy.array(size, "int64"))
    ends = constant(numpy.array([0, 1], utils.map_onnx_to_numpy_type(kind)))
    rows = graph.make_node(
        "OneHot", [node.input[0], depth, ends], attr={"axis": -1}, dtypes=[kind], shapes=[[*counted, size]]
    ).output[0]
    graph.remove_node(node.name)
    attributes: dict[str, Any] = {"keepdims": 0}
    inputs = [rows]
    if is_binary:
        attributes["axes"] = [axis]
    else:
        inputs.append(constant(numpy.array([axis], "int64")))
    graph.make_node(
        "ReduceMax" if is_binary else "ReduceSum",
        inputs,
        attr=attributes,
        name=node.name,
        outputs=node.output,
        dtypes=[kind],
        shapes=[[*counted[:-1], size]],
    )


def _size(node: Any) -> int | None:
    """How many categories there are: a layer writes the smaller of its own number and of one that is no smaller."""
    while node.type in _PASSED_ON:
        node = node.inputs[0]
    if node.is_const():
        return int(node.get_tensor_value())
    sizes = [_size(each) for each in node.inputs] if node.type in _LEAST else []
    return min((size for size in sizes if size is not None), default=None)


# What tf2onnx takes as ``custom_op_handlers``.
COUNTING_HANDLERS: Mapping[str, tuple[Callable[[Any, Any, str, object], None], list[object]]] = MappingProxyType(
    {"DenseBincount": (_write_counts, []), "Bincount": (_write_counts, [])}
)
