"""Operators that work element by element."""

from __future__ import annotations

from collections.abc import Callable
from math import erf

import numpy as np

from dippm.frontends.onnx.element_types import NUMPY_TYPES, element_type
from dippm.frontends.onnx.ops.folding import fold
from dippm.frontends.onnx.ops.registry import MICROSOFT, rule
from dippm.frontends.onnx.program import Array
from dippm.frontends.onnx.values import Call, ShapeError, Value, broadcast
from dippm.graph import Attribute, DType, OpKind

__all__: list[str] = []

_HIDDEN = -1e4  # at most this is added to what a mask hides

_Numpy = Callable[..., Array] | None


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x.astype(np.float64)))).astype(x.dtype)


def _erf(x: Array) -> Array:
    return np.array([erf(float(item)) for item in x.reshape(-1).tolist()], dtype=x.dtype).reshape(x.shape)


# operator: kind, function of UNARY, numpy's equivalent where shapes may depend on it
_UNARY: dict[str, tuple[OpKind, str, _Numpy]] = {
    "Abs": (OpKind.UNARY, "abs", np.abs),
    "Acos": (OpKind.UNARY, "acos", np.arccos),
    "Acosh": (OpKind.UNARY, "acosh", np.arccosh),
    "Asin": (OpKind.UNARY, "asin", np.arcsin),
    "Asinh": (OpKind.UNARY, "asinh", np.arcsinh),
    "Atan": (OpKind.UNARY, "atan", np.arctan),
    "Atanh": (OpKind.UNARY, "atanh", np.arctanh),
    "BitwiseNot": (OpKind.UNARY, "bitwise_not", np.invert),
    "Ceil": (OpKind.UNARY, "ceil", np.ceil),
    "Cos": (OpKind.UNARY, "cos", np.cos),
    "Cosh": (OpKind.UNARY, "cosh", np.cosh),
    "Erf": (OpKind.UNARY, "erf", _erf),
    "Exp": (OpKind.UNARY, "exp", np.exp),
    "Floor": (OpKind.UNARY, "floor", np.floor),
    "Log": (OpKind.UNARY, "log", np.log),
    "Neg": (OpKind.UNARY, "neg", np.negative),
    "Reciprocal": (OpKind.UNARY, "reciprocal", lambda x: np.asarray(1 / x)),
    "Round": (OpKind.UNARY, "round", np.round),
    "Sign": (OpKind.UNARY, "sign", np.sign),
    "Sin": (OpKind.UNARY, "sin", np.sin),
    "Sinh": (OpKind.UNARY, "sinh", np.sinh),
    "Sqrt": (OpKind.UNARY, "sqrt", np.sqrt),
    "Tan": (OpKind.UNARY, "tan", np.tan),
    "Relu": (OpKind.RELU, "", lambda x: np.maximum(x, 0)),
    "Sigmoid": (OpKind.SIGMOID, "", _sigmoid),
    "Tanh": (OpKind.TANH, "", np.tanh),
    "Celu": (OpKind.ELU, "", None),
    "Elu": (OpKind.ELU, "", None),
    "Gelu": (OpKind.GELU, "", None),
    "HardSigmoid": (OpKind.HARD_SIGMOID, "", None),
    "HardSwish": (OpKind.HARD_SWISH, "", None),
    "LeakyRelu": (OpKind.LEAKY_RELU, "", None),
    "Mish": (OpKind.MISH, "", None),
    "Selu": (OpKind.ELU, "", None),
    "Shrink": (OpKind.UNARY, "shrink", None),
    "Softplus": (OpKind.SOFTPLUS, "", None),
    "Softsign": (OpKind.UNARY, "softsign", None),
    "Swish": (OpKind.SILU, "", None),
    "ThresholdedRelu": (OpKind.UNARY, "threshold", None),
}
_TESTS: dict[str, tuple[str, Callable[..., Array]]] = {
    "Not": ("logical_not", np.logical_not),
    "IsNaN": ("isnan", np.isnan),
    "IsInf": ("isinf", np.isinf),
}


def _divide(x: Array, y: Array) -> Array:
    if np.issubdtype(x.dtype, np.floating):
        return np.asarray(x / y)
    # Integer division of ONNX cuts towards zero, numpy's rounds down.
    quotient = np.abs(x) // np.maximum(np.abs(y), 1)
    return np.asarray(quotient * np.sign(x) * np.sign(y)).astype(x.dtype)


_ARITHMETIC: dict[str, tuple[OpKind, str, _Numpy]] = {
    "Add": (OpKind.ADD, "", np.add),
    "Sub": (OpKind.SUB, "", np.subtract),
    "Mul": (OpKind.MUL, "", np.multiply),
    "Div": (OpKind.DIV, "", _divide),
    "Pow": (OpKind.POW, "", np.power),
    "BitShift": (OpKind.BINARY, "bit_shift", None),
    "BitwiseAnd": (OpKind.BINARY, "bitwise_and", np.bitwise_and),
    "BitwiseOr": (OpKind.BINARY, "bitwise_or", np.bitwise_or),
    "BitwiseXor": (OpKind.BINARY, "bitwise_xor", np.bitwise_xor),
    "PRelu": (OpKind.PRELU, "", None),
}
_COMPARISONS: dict[str, tuple[str, Callable[..., Array]]] = {
    "And": ("logical_and", np.logical_and),
    "Or": ("logical_or", np.logical_or),
    "Xor": ("logical_xor", np.logical_xor),
    "Equal": ("equal", np.equal),
    "Greater": ("greater", np.greater),
    "GreaterOrEqual": ("greater_equal", np.greater_equal),
    "Less": ("less", np.less),
    "LessOrEqual": ("less_equal", np.less_equal),
}


@rule(*_UNARY)
@rule("FastGelu", "QuickGelu", "BiasGelu", domain=MICROSOFT)
def unary(call: Call) -> Value:
    """One input, one output of the same shape and type."""
    kind, function, numpy_function = _UNARY.get(call.op.op_type, (OpKind.GELU, "", None))
    x = call.required(0)
    if numpy_function is not None and (known := fold(call, [x], numpy_function)) is not None:
        return known
    bias = call.optional(1)
    if call.op.domain == MICROSOFT and bias is not None:
        x = call.emit(OpKind.ADD, [x, bias], broadcast(x.shape, bias.shape), x.dtype)
    attributes: dict[str, Attribute] = {"function": function} if function else {}
    return call.emit(kind, [x], x.shape, x.dtype, **attributes)


@rule(*_TESTS)
def test_elements(call: Call) -> Value:
    """One input, one boolean for each element."""
    function, numpy_function = _TESTS[call.op.op_type]
    x = call.required(0)
    known = fold(call, [x], numpy_function)
    return known or call.emit(OpKind.UNARY, [x], x.shape, DType.BOOL, function=function)


@rule(*_ARITHMETIC)
def arithmetic(call: Call) -> Value:
    """Two inputs of one type, broadcast."""
    kind, function, numpy_function = _ARITHMETIC[call.op.op_type]
    return combine(call, kind, call.required(0), call.required(1), numpy_function, function=function)


@rule(*_COMPARISONS)
def comparison(call: Call) -> Value:
    """Two inputs broadcast, one boolean for each element."""
    function, numpy_function = _COMPARISONS[call.op.op_type]
    x, y = call.required(0), call.required(1)
    return combine(call, OpKind.BINARY, x, y, numpy_function, function=function, dtype=DType.BOOL)


@rule("Mod")
def mod(call: Call) -> Value:
    """Remainder, with the sign of the divisor, or of the dividend where ``fmod`` is set."""
    function = np.fmod if call.int_attribute("fmod") else np.mod
    return combine(call, OpKind.BINARY, call.required(0), call.required(1), function, function="remainder")


@rule("Max", "Min", "Sum", "Mean")
def variadic(call: Call) -> Value:
    """Any number of inputs combined pair by pair, as PyTorch code would."""
    kind, function, numpy_function = {
        "Max": (OpKind.BINARY, "maximum", np.maximum),
        "Min": (OpKind.BINARY, "minimum", np.minimum),
    }.get(call.op.op_type, (OpKind.ADD, "", np.add))
    result = call.required(0)
    if call.op.op_type == "Mean":
        values = [call.required(position) for position in range(len(call.inputs))]
        known = fold(call, values, lambda *arrays: (sum(arrays) / len(arrays)).astype(arrays[0].dtype))
        if known is not None:
            return known
    for position in range(1, len(call.inputs)):
        result = combine(call, kind, result, call.required(position), numpy_function, function=function)
    if call.op.op_type == "Mean" and len(call.inputs) > 1:
        return call.emit(OpKind.DIV, [result], result.shape, result.dtype, scalar=float(len(call.inputs)))
    return result


@rule("Where")
def where(call: Call) -> Value:
    """A choice between two tensors for each element."""
    condition, x, y = call.required(0), call.required(1), call.required(2)
    known = fold(call, [condition, x, y], np.where)
    if known is not None:
        return known
    shape = broadcast(condition.shape, x.shape, y.shape)
    numbers = [value.number() for value in (x, y) if value.is_number]
    tensors = [value for value in (condition, x, y) if not value.is_number]
    attributes: dict[str, Attribute] = {"scalar": numbers[0]} if len(numbers) == 1 else {}
    return call.emit(OpKind.BINARY, tensors, shape, x.dtype, function="where", **attributes)


@rule("Clip")
def clip(call: Call) -> Value:
    """Values held between two bounds."""
    x = call.required(0)
    bounds: dict[str, float] = {}
    for position, (name, numpy_function) in enumerate((("min", np.maximum), ("max", np.minimum)), start=1):
        bound = call.optional(position)
        if bound is not None and bound.is_number:
            bounds[name] = bound.number()
        elif name in call.op.attributes:
            bounds[name] = call.float_attribute(name)
        if bound is not None and x.is_constant:
            x = fold(call, [x, bound], numpy_function) or x
    if x.is_constant:
        return x
    return call.emit(OpKind.CLIP, [x], x.shape, x.dtype, **bounds)


@rule("Cast")
def cast(call: Call) -> Value:
    """Another element type."""
    return convert(call, call.required(0), element_type(call.int_attribute("to", 1)))


@rule("CastLike")
def cast_like(call: Call) -> Value:
    """The element type of the second input."""
    return convert(call, call.required(0), call.required(1).dtype)


@rule("BitCast")
def bit_cast(call: Call) -> Value:
    """The same bits under another type: a view."""
    x = call.required(0)
    return call.emit(OpKind.VIEW, [x], x.shape, element_type(call.int_attribute("to", 1)), function="bitcast")


@rule("SwiGLU")
def swiglu(call: Call) -> Value:
    """A gate through SiLU times the other half."""
    x = call.required(0)
    gate = call.optional(1)
    if gate is None:
        if not x.shape or x.shape[-1] % 2:
            raise ShapeError("its last dimension must be even")
        half = (*x.shape[:-1], x.shape[-1] // 2)
        x, gate = (call.view(x, half, "slice", axis=len(half) - 1) for _ in range(2))
    active = call.emit(OpKind.SILU, [x], x.shape, x.dtype)
    return call.emit(OpKind.MUL, [active, gate], broadcast(active.shape, gate.shape), x.dtype)


def combine(
    call: Call,
    kind: OpKind,
    x: Value,
    y: Value,
    numpy_function: _Numpy,
    /,
    *,
    function: str = "",
    dtype: DType | None = None,
) -> Value:
    """Combine two tensors element by element; a known number becomes the attribute ``scalar``."""
    if numpy_function is not None and x.data is not None and y.data is not None:
        known = fold(call, [x, y], numpy_function)
        if known is not None:
            return known
    shape = elementwise_shape(call, x, y)
    result = dtype or x.dtype
    attributes: dict[str, Attribute] = {"function": function} if function else {}
    if kind is OpKind.ADD and (_is_causal_mask(x) or _is_causal_mask(y)):
        attributes["causal_mask"] = True
    if y.is_number and shape == x.shape:
        return call.emit(kind, [x], shape, result, scalar=y.number(), **attributes)
    if x.is_number and shape == y.shape:
        return call.emit(kind, [y], shape, result, scalar=x.number(), scalar_first=True, **attributes)
    return call.emit(kind, [x, y], shape, result, **attributes)


def _is_causal_mask(value: Value) -> bool:
    """Whether a known tensor lets each position attend to itself and those before it."""
    data = value.data
    if data is None or not value.is_constant or data.ndim < 2 or data.shape[-1] < 2 or not value.dtype.is_floating:
        return False
    queries, keys = data.shape[-2:]
    is_hidden = data <= _HIDDEN
    expected = np.triu(np.ones((queries, keys), dtype=bool), k=1 + max(keys - queries, 0))
    return bool((is_hidden == expected).all() and expected.any() and not data[~is_hidden].any())


def elementwise_shape(call: Call, x: Value, y: Value) -> tuple[int, ...]:
    """The common shape, where a stored tensor that holds the file's batch follows the batch."""
    try:
        return broadcast(x.shape, y.shape)
    except ShapeError:
        native = call.native_output_shape()
        for one, other in ((x, y), (y, x)):
            # Only the batch differs from the file's sizes, so the stored tensor would have been larger.
            is_stored = one.is_static and not other.is_static and one.shape == native
            if is_stored and len(other.shape) == len(one.shape):
                return other.shape
        raise


def convert(call: Call, x: Value, dtype: DType) -> Value:
    """A tensor in another element type; the tensor itself where it already has it."""
    if dtype is x.dtype:
        return x
    numpy_type = NUMPY_TYPES.get(dtype)
    if x.data is not None and numpy_type is not None:
        known = fold(call, [x], lambda data: data.astype(numpy_type))
        if known is not None:
            return known
    return call.emit(OpKind.CAST, [x], x.shape, dtype)
