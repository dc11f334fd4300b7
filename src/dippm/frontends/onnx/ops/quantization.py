"""Conversion between numbers and quantised integers, and element-wise arithmetic on the latter.

A quantised operator is read as an eager framework runs it, which has no integer kernels for a GPU: the integers
become floating-point numbers, the operator runs on those, and the result becomes integers again. Each conversion is one
kernel. The two ways of writing a quantised model, with operators of its own or with pairs of conversions, so give
nearly the same answer.
"""

from __future__ import annotations

import numpy as np

from dippm.frontends.onnx.element_types import NUMPY_TYPES, element_type
from dippm.frontends.onnx.ops.folding import fold
from dippm.frontends.onnx.ops.pooling import global_pool, pool
from dippm.frontends.onnx.ops.reduction import reduce, softmax
from dippm.frontends.onnx.ops.registry import MICROSOFT, Rule, rule
from dippm.frontends.onnx.values import Call, ShapeError, Value, broadcast, normalize_axis
from dippm.graph import DType, OpKind

__all__ = ["IS_QUANTISED", "as_integers", "as_numbers", "numbers_at"]

IS_QUANTISED = (
    "The model is quantised: its weights stay in memory as stored and are turned into floating-point numbers at every "
    "call, in which products are computed. Engines with integer kernels, such as TensorRT, are not predicted."
)
"""What the user is told of a quantised model."""


def as_numbers(
    call: Call, x: Value, scale: Value | None = None, zero_point: Value | None = None, dtype: DType = DType.FLOAT32
) -> Value:
    """The floating-point numbers that integers stand for.

    Args:
        call: The operator that needs them.
        x: The integers.
        scale: Their scale, where there is one.
        zero_point: The integer that stands for zero, where it is not 0.
        dtype: Type of the numbers, where the scale does not say.
    """
    call.warn(IS_QUANTISED)
    if scale is not None and scale.dtype.is_floating:
        dtype = scale.dtype
    if x.is_static and x.index < 0:
        return Value(x.shape, dtype, is_static=True, quantised=(x, scale, zero_point))
    return call.emit(OpKind.DEQUANTIZE, [x, scale, zero_point], x.shape, dtype)


def as_integers(call: Call, x: Value, scale: Value | None, zero_point: Value | None) -> Value:
    """Numbers as integers again, as a quantised operator hands them on."""
    dtype = DType.UINT8 if zero_point is None else zero_point.dtype
    return call.emit(OpKind.QUANTIZE, [x, scale, zero_point], x.shape, dtype)


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
    """Integers to numbers; a single number of the code stays one."""
    x, scale, zero_point = call.required(0), call.required(1), call.optional(2)
    dtype = scale.dtype
    if call.int_attribute("output_dtype"):
        dtype = element_type(call.int_attribute("output_dtype"))
    if x.is_number and scale.is_constant and dtype in NUMPY_TYPES:
        offset = zero_point if zero_point is not None else call.constant(np.zeros((), np.int64))
        numpy_type = NUMPY_TYPES[dtype]
        known = fold(call, [x, scale, offset], lambda data, by, zero: ((data - 1.0 * zero) * by).astype(numpy_type))
        if known is not None:
            return known
    if x.is_static:
        return as_numbers(call, x, scale, zero_point, dtype)
    return call.emit(OpKind.DEQUANTIZE, [x, scale, zero_point], x.shape, dtype)


@rule("DynamicQuantizeLinear")
def dynamic_quantize(call: Call) -> list[Value]:
    """Numbers to integers, after a look for the smallest and the largest."""
    x = call.required(0)
    every = tuple(range(len(x.shape)))
    scalars = [((), x.dtype), ((), x.dtype)]
    ends = call.emit_many(OpKind.REDUCE, [x], scalars, attributes={"function": "aminmax", "axes": every})
    outputs = [(x.shape, DType.UINT8), ((), x.dtype), ((), DType.UINT8)]
    return call.emit_many(OpKind.QUANTIZE, [x, *ends], outputs)


@rule("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_binary(call: Call) -> Value:
    """Arithmetic on two quantised tensors."""
    a, b = numbers_at(call, 0), numbers_at(call, 3)
    kind = OpKind.ADD if call.op.op_type == "QLinearAdd" else OpKind.MUL
    result = call.emit(kind, [a, b], broadcast(a.shape, b.shape), a.dtype)
    return as_integers(call, result, call.optional(6), call.optional(7))


@rule("QLinearWhere", domain=MICROSOFT)
def qlinear_where(call: Call) -> Value:
    """A choice between two quantised tensors."""
    condition, a, b = call.required(0), numbers_at(call, 1), numbers_at(call, 4)
    shape = broadcast(condition.shape, a.shape, b.shape)
    result = call.emit(OpKind.BINARY, [condition, a, b], shape, a.dtype, function="where")
    return as_integers(call, result, call.optional(7), call.optional(8))


@rule("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_unary(call: Call) -> Value:
    """An activation of a quantised tensor."""
    x = numbers_at(call, 0)
    kind = OpKind.SIGMOID if call.op.op_type == "QLinearSigmoid" else OpKind.LEAKY_RELU
    return as_integers(call, call.emit(kind, [x], x.shape, x.dtype), call.optional(3), call.optional(4))


_ON_NUMBERS: dict[str, Rule] = {
    "QLinearAveragePool": pool,
    "QLinearGlobalAveragePool": global_pool,
    "QLinearReduceMean": reduce,
    "QLinearSoftmax": softmax,
}


@rule(*_ON_NUMBERS, domain=MICROSOFT)
def qlinear(call: Call) -> Value:
    """An operator whose attributes are those of the standard one."""
    result = _ON_NUMBERS[call.op.op_type](Call(call.op, [numbers_at(call, 0)], call.evaluator))
    first = result if isinstance(result, Value) else result[0]
    return as_integers(call, first, call.optional(3), call.optional(4))


@rule("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(call: Call) -> Value:
    """Quantised tensors one after another; each comes with its scale and zero point."""
    parts = [numbers_at(call, position) for position in range(2, len(call.inputs), 3)]
    if not parts:
        raise ShapeError("it has no inputs")
    axis = normalize_axis(call.int_attribute("axis", 1), len(parts[0].shape))
    if any(len(part.shape) != len(parts[0].shape) for part in parts):
        raise ShapeError("its inputs differ in their number of dimensions")
    total = sum(part.shape[axis] for part in parts)
    shape = (*parts[0].shape[:axis], total, *parts[0].shape[axis + 1 :])
    joined = call.emit(OpKind.CONCAT, parts, shape, parts[0].dtype, axis=axis)
    return as_integers(call, joined, call.optional(0), call.optional(1))


def numbers_at(call: Call, position: int) -> Value:
    """An input with its scale and zero point behind it, as numbers."""
    return as_numbers(call, call.required(position), call.optional(position + 1), call.optional(position + 2))
