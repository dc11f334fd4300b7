"""Operators that make a tensor out of little or nothing."""

from __future__ import annotations

from math import ceil, isfinite

import numpy as np

from dippm.frontends.onnx.element_types import NUMPY_TYPES, element_type
from dippm.frontends.onnx.ops.registry import rule
from dippm.frontends.onnx.program import Weight
from dippm.frontends.onnx.roles import role_of_constant
from dippm.frontends.onnx.values import Call, OpenSizeError, ShapeError, Value, numel
from dippm.graph import DType, OpKind, TensorRole

__all__: list[str] = []


@rule("Constant")
def constant(call: Call) -> Value:
    """A number or tensor written in the code."""
    for name, stored in call.op.attributes.items():
        if isinstance(stored, Weight):
            is_trained = call.op.outputs[0] in call.evaluator.program.trained
            role = role_of_constant(stored, is_trained=is_trained)
            return Value(stored.shape, stored.dtype, stored.data, role=role, name=stored.name, is_static=True)
        if name in {"value_int", "value_ints"}:
            return call.constant(np.array(stored, dtype=np.int64))
        if name in {"value_float", "value_floats"}:
            return call.constant(np.array(stored, dtype=np.float32))
        if name in {"value_string", "value_strings"}:
            count = () if isinstance(stored, str) else (len(stored) if isinstance(stored, list) else 0,)
            return Value(count, DType.STRING, role=TensorRole.CONSTANT, is_static=True)
    raise ShapeError("it holds no value")


@rule("ConstantOfShape")
def constant_of_shape(call: Call) -> Value:
    """One number repeated."""
    sizes = call.known_ints(0)
    if sizes is None:
        raise OpenSizeError("its shape depends on values that are not known")
    if any(size < 0 for size in sizes):
        raise ShapeError(f"its shape {sizes[:16]} has a negative size")
    stored = call.tensor_attribute("value")
    number = stored.data.reshape(-1)[0] if stored is not None and stored.data is not None and stored.data.size else None
    dtype = stored.dtype if stored is not None else DType.FLOAT32
    shape = tuple(sizes)
    numpy_type = NUMPY_TYPES.get(dtype)
    if (
        numel(shape) <= call.data_limit
        and len(shape) <= 32
        and numpy_type is not None
        and (stored is None or number is not None)
    ):
        return call.constant(np.full(shape, 0 if number is None else number, dtype=numpy_type), call.inputs)
    return call.emit(OpKind.FILL, [], shape, dtype, function="full")


@rule("Range")
def arange(call: Call) -> Value:
    """Numbers in steps."""
    start, limit, step = (call.required(position) for position in range(3))
    if start.data is None or limit.data is None or step.data is None:
        raise OpenSizeError("its bounds depend on values that are not known")
    numbers = (start.number(), limit.number(), step.number())
    if numbers[2] == 0 or not all(isfinite(number) for number in numbers):
        raise ShapeError("its step is 0 or its bounds are not finite")
    count = max(ceil((numbers[1] - numbers[0]) / numbers[2]), 0)
    numpy_type = NUMPY_TYPES.get(start.dtype)
    if count <= call.data_limit and numpy_type is not None:
        data = (numbers[0] + np.arange(count) * numbers[2]).astype(numpy_type)
        return call.constant(data, call.inputs)
    return call.emit(OpKind.FILL, [], (count,), start.dtype, function="arange")


@rule("EyeLike")
def eye_like(call: Call) -> Value:
    """Ones on a diagonal."""
    x = call.required(0)
    dtype = element_type(call.int_attribute("dtype")) if "dtype" in call.op.attributes else x.dtype
    return call.emit(OpKind.FILL, [], x.shape, dtype, function="eye")


@rule("RandomNormal", "RandomUniform")
def random(call: Call) -> Value:
    """Random numbers."""
    shape = call.ints_attribute("shape")
    if shape is None or any(size < 0 for size in shape):
        raise ShapeError("its shape is missing or negative")
    dtype = element_type(call.int_attribute("dtype", 1))
    return call.emit(OpKind.RANDOM, [], tuple(shape), dtype, function=call.op.op_type)


@rule("RandomNormalLike", "RandomUniformLike", "Bernoulli")
def random_like(call: Call) -> Value:
    """Random numbers, as many as the input has."""
    x = call.required(0)
    dtype = element_type(call.int_attribute("dtype")) if "dtype" in call.op.attributes else x.dtype
    inputs = [x] if call.op.op_type == "Bernoulli" else []
    return call.emit(OpKind.RANDOM, inputs, x.shape, dtype, function=call.op.op_type)


@rule("Multinomial")
def multinomial(call: Call) -> Value:
    """Random draws from a distribution."""
    x = call.required(0)
    dtype = element_type(call.int_attribute("dtype", 6))
    shape = (*x.shape[:1], call.int_attribute("sample_size", 1))
    return call.emit(OpKind.RANDOM, [x], shape, dtype, function="multinomial")


@rule("BlackmanWindow", "HammingWindow", "HannWindow")
def window(call: Call) -> Value:
    """A window function."""
    size = call.required(0)
    if size.data is None:
        raise OpenSizeError("its size depends on values that are not known")
    dtype = element_type(call.int_attribute("output_datatype", 1))
    return call.emit(OpKind.FILL, [], (size.integer(),), dtype, function="window")


@rule("MelWeightMatrix")
def mel_weights(call: Call) -> Value:
    """A filter bank."""
    bins, length = call.required(0), call.required(1)
    if bins.data is None or length.data is None:
        raise OpenSizeError("its sizes depend on values that are not known")
    dtype = element_type(call.int_attribute("output_datatype", 1))
    shape = (length.integer() // 2 + 1, bins.integer())
    return call.emit(OpKind.FILL, [], shape, dtype, function="mel")
