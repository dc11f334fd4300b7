"""Operators without a rule: shapes from the file or from onnx's own inference, cost by their bytes."""

from __future__ import annotations

import logging

from dippm.frontends.onnx.element_types import element_type
from dippm.frontends.onnx.program import ABSENT
from dippm.frontends.onnx.values import Call, Value
from dippm.graph import DType, OpKind

__all__ = ["infer_unknown"]

_logger = logging.getLogger(__name__)

_TYPE_NUMBERS = {dtype: number for number in range(1, 24) for dtype in [element_type(number)]}


def infer_unknown(call: Call) -> list[Value]:
    """Write an unknown operator down as :attr:`OpKind.UNKNOWN`."""
    op = call.op
    call.evaluator.count_unsupported(op)
    tensors = [value for value in call.inputs if value is not None and value.items is None]
    # What an operator makes has its data's shape sooner than a weight's, whichever of them it takes first.
    first = next((value for value in tensors if not value.is_static), tensors[0] if tensors else None)
    fallback = ((), DType.FLOAT32) if first is None else (first.shape, first.dtype)
    inferred = _infer(call) if op.domain == "" else {}
    outputs = []
    for position, number in enumerate(op.outputs):
        found = _declared(call, number)
        if found is None:
            found = inferred.get(position)
        if found is None and first is not None and first.shape and _is_like(call, number, first):
            found = fallback
        outputs.append(found or fallback)
    inputs = [value for value in call.inputs if value is None or value.items is None]
    return call.emit_many(OpKind.UNKNOWN, inputs, outputs)


def _is_like(call: Call, number: int, first: Value) -> bool:
    declared = call.evaluator.program.declared.get(number)
    return declared is None or declared[1] is None or len(declared[1]) == len(first.shape)


def _declared(call: Call, number: int) -> tuple[tuple[int, ...], DType] | None:
    """The shape that the file states; open dimensions, and the batch, are taken from the first input."""
    if number == ABSENT:
        return None
    declared = call.evaluator.program.declared.get(number)
    if declared is None or declared[1] is None:
        return None
    dtype, dims = declared[0], declared[1]
    first = next((value for value in call.inputs if value is not None and not value.is_static), None)
    native = None
    if first is not None:
        position = next(index for index, value in enumerate(call.inputs) if value is first)
        native = call.native_shape(position)
    sizes = []
    for axis, size in enumerate(dims):
        has_axis = first is not None and axis < len(first.shape)
        if size < 0:
            if not has_axis or first is None:
                return None
            sizes.append(first.shape[axis])
        elif native is not None and has_axis and first is not None and native[axis] == size:
            sizes.append(first.shape[axis])
        else:
            sizes.append(size)
    return tuple(sizes), dtype


def _infer(call: Call) -> dict[int, tuple[tuple[int, ...], DType]]:
    """What onnx itself makes of the operator."""
    import onnx

    op = call.op
    attributes = {name: value for name, value in op.attributes.items() if isinstance(value, int | float | str | list)}
    try:
        schema = onnx.defs.get_schema(op.op_type, op.version, op.domain)
        names = [f"i{i}" if value is not None else "" for i, value in enumerate(call.inputs)]
        node = onnx.helper.make_node(op.op_type, names, [f"o{i}" for i in range(len(op.outputs))], **attributes)  # type: ignore[arg-type]
        types = {
            f"i{i}": onnx.helper.make_tensor_type_proto(_TYPE_NUMBERS.get(value.dtype, 1), list(value.shape))
            for i, value in enumerate(call.inputs)
            if value is not None
        }
        imports = [onnx.helper.make_opsetid("", op.version)]
        found = onnx.shape_inference.infer_node_outputs(schema, node, types, opset_imports=imports)
    except (
        onnx.checker.ValidationError, onnx.defs.SchemaError, onnx.shape_inference.InferenceError, ValueError, TypeError,
        RuntimeError, KeyError,
    ) as exc:  # fmt: skip
        _logger.debug("onnx cannot infer %s: %s", op.op_type, exc)
        return {}
    result = {}
    for name, proto in found.items():
        dims = proto.tensor_type.shape.dim
        if proto.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            shape = tuple(dim.dim_value for dim in dims)
            result[int(name[1:])] = (shape, element_type(proto.tensor_type.elem_type))
    return result
