"""Mixtures of experts in one operator."""

from __future__ import annotations

from dippm.frontends.onnx.ops.convolution import apply_activation
from dippm.frontends.onnx.ops.packed_weights import stored_type, unpacked
from dippm.frontends.onnx.ops.quantization import as_numbers
from dippm.frontends.onnx.ops.registry import MICROSOFT, rule
from dippm.frontends.onnx.values import Call, ShapeError, Value, numel
from dippm.graph import DType, OpKind

__all__: list[str] = []

_FUSED_HALVES = 2

# Where the weights, and those of QMoE's three products the scales, zero points and biases, stand.
_PLACES = ((2, 3), (4, 5), (6, 7))
_QUANTISED_PLACES = ((2, 3, 11, 4), (5, 6, 12, 7), (8, 9, 13, 10))
_FLOAT_TYPES = {"fp4": DType.FLOAT4, "nvfp4": DType.FLOAT4, "wfp4afp8": DType.FLOAT4, "fp8": DType.FLOAT8}


@rule("MoE", "QMoE", domain=MICROSOFT)
def mixture_of_experts(call: Call) -> Value:
    """Every token through the ``k`` experts that its scores choose, by two or three products with stacks of weights."""
    x, scores = call.required(0), call.required(1)
    chosen = call.int_attribute("k", 1)
    if not x.shape or len(scores.shape) != 2 or numel(x.shape[:-1]) != scores.shape[0]:
        raise ShapeError("its scores must be [tokens, experts]")
    tokens, experts = scores.shape
    if not 1 <= chosen <= experts:
        raise ShapeError(f"it asks for {chosen} of {experts} experts")
    width, rows = x.shape[-1], tokens * chosen
    weights = call.emit(OpKind.SOFTMAX, [scores], scores.shape, scores.dtype, axes=(1,))
    shape = (tokens, chosen)
    weights, places = call.emit_many(
        OpKind.SORT,
        [weights],
        [(shape, scores.dtype), (shape, DType.INT64)],
        attributes={"function": "topk", "axes": (1,)},
    )
    flat = call.view(x, (tokens, width), "reshape")
    entering = call.emit(OpKind.GATHER, [flat, places], (rows, width), x.dtype, axis=0)
    first, second, third = _PLACES if call.op.op_type == "MoE" else _QUANTISED_PLACES
    hidden = _product(call, entering, first, experts=experts)
    if call.optional(third[0]) is None:
        hidden = _activate(call, hidden)
    else:
        gate = _activate(call, hidden)
        other = _product(call, entering, third, experts=experts)
        hidden = call.emit(OpKind.MUL, [gate, other], gate.shape, x.dtype)
    left = _product(call, hidden, second, experts=experts)
    if left.shape[-1] != width:
        raise ShapeError(f"its experts give {left.shape[-1]} columns for {width}")
    each = call.view(left, (tokens, chosen, width), "reshape")
    weighted = call.emit(OpKind.MUL, [each, weights], each.shape, x.dtype)
    total = call.emit(OpKind.REDUCE, [weighted], (tokens, width), x.dtype, function="sum", axes=(1,))
    return call.view(total, x.shape, "reshape")


def _product(call: Call, rows: Value, places: tuple[int, ...], *, experts: int) -> Value:
    """Every row times the matrix of its expert."""
    inner = rows.shape[-1]
    stack, bias = call.required(places[0]), call.optional(places[-1])
    if len(places) == len(_QUANTISED_PLACES[0]):
        stack = _numbers(call, stack, places, rows.dtype)
    if len(stack.shape) != 3 or stack.shape[0] != experts or inner not in stack.shape[1:]:
        raise ShapeError(f"{inner} columns meet weights of {list(stack.shape)} for {experts} experts")
    # Their layout was turned round once; a view of weights costs nothing.
    if stack.shape[2] == inner:
        columns = stack.shape[1]
        stack = call.view(stack, (experts, inner, columns), "transpose", perm=(0, 2, 1))
    else:
        columns = stack.shape[2]
    result = call.emit(OpKind.MATMUL, [rows, stack], (rows.shape[0], columns), rows.dtype)
    return call.add(result, bias)


def _numbers(call: Call, packed: Value, places: tuple[int, ...], dtype: DType) -> Value:
    """The matrices of all experts, unpacked by a kernel along their last dimension."""
    number = _QUANTISED_PLACES.index(places) + 1
    bits = call.int_attribute(f"fc{number}_expert_weight_bits", call.int_attribute("expert_weight_bits", 4))
    stored = _FLOAT_TYPES.get(call.text_attribute("quant_type", "int"), stored_type(bits))
    if len(packed.shape) != 3 or stored is None:
        raise ShapeError("its weights must have three dimensions, and 2, 4 or 8 bits each")
    if packed.dtype.bits != stored.bits:
        last = packed.shape[2] * packed.dtype.bits // stored.bits
        packed = unpacked(packed, (*packed.shape[:2], last), stored)
    return as_numbers(call, packed, call.optional(places[1]), call.optional(places[2]), dtype)


def _activate(call: Call, x: Value) -> Value:
    """The activation; SwiGLU has its two halves in one product."""
    name = call.text_attribute("activation_type", "relu")
    if name == "identity":
        return x
    if name != "swiglu" or not call.int_attribute("swiglu_fusion"):
        return apply_activation(call, x, "Silu" if name == "swiglu" else name.capitalize())
    if x.shape[-1] % _FUSED_HALVES:
        raise ShapeError("its first product must have an even number of columns")
    half = (*x.shape[:-1], x.shape[-1] // _FUSED_HALVES)
    gate, other = (call.view(x, half, "slice", axis=1) for _ in range(_FUSED_HALVES))
    return call.emit(OpKind.MUL, [apply_activation(call, gate, "Silu"), other], half, x.dtype)
