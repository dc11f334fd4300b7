"""Fourier transforms written as ONNX's own operator. Runs in the converter's process.

tf2onnx writes a transform as a matrix product with sines and cosines, and only where nothing but its magnitude is read.
A GPU runs it as what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

__all__ = ["FOURIER_HANDLERS"]

# A complex number is two real ones in a last dimension, as ONNX has it.
_PARTS = 2


def _write_rfft(graph: Any, node: Any, _name: str, _args: object) -> None:
    """``RFFT``: the last dimension, cut or filled up to a given length, becomes frequencies."""
    signal, length = node.input
    kind, made = graph.get_dtype(signal), graph.get_shape(node.output[0])
    shape = _shape_of_signal(graph, node)
    lone = graph.make_node("Unsqueeze", [signal, _constant(graph, [-1])], dtypes=[kind]).output[0]
    length = graph.make_node("Cast", [length], attr={"to": _int64()}).output[0]
    length = graph.make_node("Squeeze", [length]).output[0]
    graph.remove_node(node.name)
    graph.make_node(
        "DFT",
        [lone, length],
        attr={"axis": len(shape) - 1, "onesided": 1},
        name=node.name,
        outputs=node.output,
        shapes=[[*(made or [-1] * len(shape)), _PARTS]],
        dtypes=[kind],
    )


def _shape_of_signal(graph: Any, node: Any) -> list[int]:
    """The shape of what is transformed or put together, if nothing reads complex numbers that is not written here."""
    shape = graph.get_shape(node.input[0])
    foreign = {each.type for each in graph.find_output_consumers(node.output[0])} - FOURIER_HANDLERS.keys()
    if foreign or shape is None:
        what = f"{', '.join(sorted(foreign))} of complex numbers" if foreign else "signals of unknown rank"
        raise ValueError(f"a Fourier transform is converted where its magnitude or parts are read, not {what}")
    return list(shape)


def _write_complex(graph: Any, node: Any, _name: str, _args: object) -> None:
    """``Complex``: two tensors become the parts of one."""
    kind, shape = graph.get_dtype(node.input[0]), _shape_of_signal(graph, node)
    last = _constant(graph, [-1])
    parts = [graph.make_node("Unsqueeze", [part, last], dtypes=[kind]).output[0] for part in node.input]
    graph.remove_node(node.name)
    shapes = [[*shape, _PARTS]]
    graph.make_node(
        "Concat", parts, attr={"axis": -1}, name=node.name, outputs=node.output, shapes=shapes, dtypes=[kind]
    )


def _write_fft(axes: int, *, is_inverse: bool) -> Callable[[Any, Any, str, object], None]:
    """``FFT`` and its kin: the last dimensions of complex numbers, one after another."""

    def write(graph: Any, node: Any, _name: str, _args: object) -> None:
        whole = _shape_of_signal(graph, node)
        parts, outputs = node.input[0], node.output
        source = graph.get_node_by_output(parts)
        # One that is written already holds the parts in a dimension of their own.
        is_written = source is not None and source.type in ("Concat", "DFT")
        rank = len(whole) - int(is_written)
        kind = graph.get_dtype(source.input[0] if is_written else parts)
        shape = whole if is_written else [*whole, _PARTS]
        graph.remove_node(node.name)
        for axis in range(rank - 1, rank - axes - 1, -1):
            is_last = axis == rank - axes
            given = {"name": node.name, "outputs": outputs} if is_last else {}
            attributes = {"axis": axis, "onesided": 0, "inverse": int(is_inverse)}
            made = graph.make_node("DFT", [parts], attr=attributes, shapes=[shape], dtypes=[kind], **given)
            parts = made.output[0]

    return write


def _write_part(place: int) -> Callable[[Any, Any, str, object], None]:
    """``Real`` and ``Imag``."""

    def write(graph: Any, node: Any, _name: str, _args: object) -> None:
        shapes, kinds = node.output_shapes, node.output_dtypes
        index = graph.make_const(_new_name(node), _array(place)).output[0]
        graph.remove_node(node.name)
        inputs, outputs = [node.input[0], index], node.output
        graph.make_node(
            "Gather", inputs, attr={"axis": -1}, name=node.name, outputs=outputs, shapes=shapes, dtypes=kinds
        )

    return write


def _write_magnitude(graph: Any, node: Any, _name: str, _args: object) -> None:
    """``ComplexAbs``."""
    shapes, kinds = node.output_shapes, node.output_dtypes
    graph.remove_node(node.name)
    attributes = {"axes": [-1], "keepdims": 0}
    graph.make_node(
        "ReduceL2", node.input, attr=attributes, name=node.name, outputs=node.output, shapes=shapes, dtypes=kinds
    )


def _constant(graph: Any, values: list[int]) -> str:
    names = import_module("tf2onnx.utils")
    return str(graph.make_const(names.make_name("fourier"), _array(values)).output[0])


def _new_name(node: Any) -> str:
    return str(import_module("tf2onnx.utils").make_name(node.name))


def _array(value: object) -> Any:
    return import_module("numpy").array(value, dtype="int64")


def _int64() -> int:
    return int(import_module("onnx").TensorProto.INT64)


# What tf2onnx takes as ``custom_op_handlers``.
FOURIER_HANDLERS: Mapping[str, tuple[Callable[[Any, Any, str, object], None], list[object]]] = MappingProxyType(
    {
        "RFFT": (_write_rfft, []),
        "Complex": (_write_complex, []),
        **{
            f"{prefix}FFT{suffix}": (_write_fft(axes, is_inverse=bool(prefix)), [])
            for axes, suffix in ((1, ""), (2, "2D"), (3, "3D"))
            for prefix in ("", "I")
        },
        "Real": (_write_part(0), []),
        "Imag": (_write_part(1), []),
        "ComplexAbs": (_write_magnitude, []),
    }
)
