"""Conversion between numbers and quantised integers, and arithmetic on the latter."""

from __future__ import annotations

from dippm.frontends.onnx.element_types import element_type
from dippm.frontends.onnx.ops.registry import MICROSOFT, rule
from dippm.frontends.onnx.values import Call, ShapeError, Value, broadcast, normalize_axis
from dippm.graph import DType, OpKind, TensorRole

__all__: list[str] = []


@rule("QuantizeLinear")
def quantize(call: Call) -> Value:
    """Numbers to integers."""
    x = call.required(0)
    zero_point = call.optional(2)
    dtype = DType.UINT8 if zero_point is None else zero_point.dtype
    if zero_point is None and call.int_attribute("output_dtype"):
        dtype = element_type(call.int_attribute("output_dtype"))
    return call.emit(OpKind.QUANTIZE, [x, call.required(1), zero_point], x.shape, dtype)


@rule("DequantizeLinear")
def dequantize(call: Call) -> Value:
    """Integers to numbers; a stored weight is taken as the numbers that it stands for."""
    x, scale = call.required(0), call.required(1)
    if x.is_static and x.role is not TensorRole.ACTIVATION:
        return Value(x.shape, scale.dtype, role=TensorRole.PARAMETER, name=x.name, is_static=True)
    return call.emit(OpKind.DEQUANTIZE, [x, scale, call.optional(2)], x.shape, scale.dtype)


@rule("DynamicQuantizeLinear")
def dynamic_quantize(call: Call) -> list[Value]:
    """Numbers to integers, with the scale measured on the way."""
    x = call.required(0)
    outputs = [(x.shape, DType.UINT8), ((), x.dtype), ((), DType.UINT8)]
    return call.emit_many(OpKind.QUANTIZE, [x], outputs)


@rule("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_binary(call: Call) -> Value:
    """Arithmetic on two quantised tensors."""
    a, b = call.required(0), call.required(3)
    kind = OpKind.ADD if call.op.op_type == "QLinearAdd" else OpKind.MUL
    return call.emit(kind, [a, b], broadcast(a.shape, b.shape), a.dtype)


@rule("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_unary(call: Call) -> Value:
    """An activation of a quantised tensor."""
    x = call.required(0)
    kind = OpKind.SIGMOID if call.op.op_type == "QLinearSigmoid" else OpKind.LEAKY_RELU
    return call.emit(kind, [x], x.shape, x.dtype)


@rule("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(call: Call) -> Value:
    """Quantised tensors one after another; each comes with its scale and zero point."""
    parts = [call.required(position) for position in range(2, len(call.inputs), 3)]
    if not parts:
        raise ShapeError("it has no inputs")
    axis = normalize_axis(call.int_attribute("axis", 1), len(parts[0].shape))
    if any(len(part.shape) != len(parts[0].shape) for part in parts):
        raise ShapeError("its inputs differ in their number of dimensions")
    total = sum(part.shape[axis] for part in parts)
    shape = (*parts[0].shape[:axis], total, *parts[0].shape[axis + 1 :])
    return call.emit(OpKind.CONCAT, parts, shape, parts[0].dtype, axis=axis)
