"""Mixtures of experts in one operator."""

from __future__ import annotations

from dippm.frontends.onnx.ops.convolution import apply_activation
from dippm.frontends.onnx.ops.registry import MICROSOFT, rule
from dippm.frontends.onnx.values import Call, ShapeError, Value, numel
from dippm.graph import DType, OpKind

__all__: list[str] = []

_FUSED_HALVES = 2


@rule("MoE", domain=MICROSOFT)
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
    hidden = _product(call, entering, call.required(2), call.optional(3), experts=experts)
    third = call.optional(6)
    if third is None:
        hidden = _activate(call, hidden)
    else:
        gate = _activate(call, hidden)
        other = _product(call, entering, third, call.optional(7), experts=experts)
        hidden = call.emit(OpKind.MUL, [gate, other], gate.shape, x.dtype)
    left = _product(call, hidden, call.required(4), call.optional(5), experts=experts)
    if left.shape[-1] != width:
        raise ShapeError(f"its experts give {left.shape[-1]} columns for {width}")
    each = call.view(left, (tokens, chosen, width), "reshape")
    weighted = call.emit(OpKind.MUL, [each, weights], each.shape, x.dtype)
    total = call.emit(OpKind.REDUCE, [weighted], (tokens, width), x.dtype, function="sum", axes=(1,))
    return call.view(total, x.shape, "reshape")


def _product(call: Call, rows: Value, stack: Value, bias: Value | None, *, experts: int) -> Value:
    """Every row times the matrix of its expert."""
    inner = rows.shape[-1]
    if len(stack.shape) != 3 or stack.shape[0] != experts or inner not in stack.shape[1:]:
        raise ShapeError(f"{inner} columns meet weights of {list(stack.shape)} for {experts} experts")
    # Their layout was turned round once; a view of weights costs nothing.
    if stack.shape[2] == inner:
        columns = stack.shape[1]
        stack = call.view(stack, (experts, inner, columns), "transpose", perm=(0, 2, 1))
    else:
        columns = stack.shape[2]
    result = call.emit(OpKind.MATMUL, [rows, stack], (rows.shape[0], columns), rows.dtype)
    return result if bias is None else call.emit(OpKind.ADD, [result, bias], result.shape, rows.dtype)


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
