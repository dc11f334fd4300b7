"""Rotary position embeddings."""

from __future__ import annotations

from dippm.frontends.onnx.ops.registry import MICROSOFT, rule
from dippm.frontends.onnx.values import Call, ShapeError, Value
from dippm.graph import OpKind

__all__: list[str] = []


@rule("RotaryEmbedding")
@rule("RotaryEmbedding", "GemmaRotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(call: Call) -> Value:
    """Pairs of features turned by an angle that follows the position, as PyTorch code spells it."""
    x = call.required(0)
    if len(x.shape) < 3:
        raise ShapeError("it needs at least three dimensions")
    # x * cos + rotate_half(x) * sin: two products, a negation, a concatenation and a sum.
    half = (*x.shape[:-1], x.shape[-1] // 2)
    first, second = (call.view(x, half, "slice", axis=len(half) - 1) for _ in range(2))
    negated = call.emit(OpKind.UNARY, [second], half, x.dtype, function="neg")
    turned = call.emit(OpKind.CONCAT, [negated, first], x.shape, x.dtype, axis=len(half) - 1)
    tables = [value for position in (1, 2, 3) if (value := call.optional(position)) is not None]
    tables = [table for table in tables if table.dtype.is_floating][:2]
    cosine, sine = tables if len(tables) == 2 else (None, None)
    left = call.emit(OpKind.MUL, [x, cosine], x.shape, x.dtype)
    right = call.emit(OpKind.MUL, [turned, sine], x.shape, x.dtype)
    return call.emit(OpKind.ADD, [left, right], x.shape, x.dtype)
