"""Rotary position embeddings."""

from __future__ import annotations

from dippm.frontends.onnx.ops.registry import MICROSOFT, rule
from dippm.frontends.onnx.values import Call, ShapeError, Value
from dippm.graph import OpKind

__all__ = ["rotary_rows"]


@rule("RotaryEmbedding")
def rotary_embedding(call: Call) -> Value:
    """Pairs of features turned by an angle that follows the position, as PyTorch code spells it."""
    return _turned(call, call.required(0), tables=(1, 2), positions=call.optional(3))


@rule("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding_of_onnxruntime(call: Call) -> Value:
    """The same with the positions before the tables."""
    return _turned(call, call.required(0), tables=(2, 3), positions=call.optional(1))


@rule("GemmaRotaryEmbedding", domain=MICROSOFT)
def gemma_rotary_embedding(call: Call) -> list[Value]:
    """Queries and keys turned by angles at hand, as are their halves in exchanged places."""
    angles = call.required(0)
    cosine, sine = (
        call.emit(OpKind.UNARY, [angles], angles.shape, angles.dtype, function=name) for name in ("cos", "sin")
    )
    return [_sum(call, call.required(place), call.required(place + 1), cosine, sine) for place in (1, 3)]


def rotary_rows(call: Call, table: Value | None, positions: Value | None, steps: tuple[int, int]) -> Value | None:
    """The rows of a table of cosines or sines that the positions at hand need; what turns by them fetches them itself.

    Args:
        call: The operator.
        table: A row for each position, [positions, size]; what is laid out for the samples already stays as it is.
        positions: What chooses the rows.
        steps: Samples and length of the sequence.
    """
    if table is None or positions is None or len(table.shape) != 2:
        return table
    return call.view(table, (*steps, table.shape[1]), "select")


def _turned(call: Call, x: Value, *, tables: tuple[int, int], positions: Value | None) -> Value:
    if len(x.shape) < 3:
        raise ShapeError("it needs at least three dimensions")
    # x * cos + rotate_half(x) * sin: two products, a negation, a concatenation and a sum.
    half = (*x.shape[:-1], x.shape[-1] // 2)
    first, second = (call.view(x, half, "slice", axis=len(half) - 1) for _ in range(2))
    negated = call.emit(OpKind.UNARY, [second], half, x.dtype, function="neg")
    turned = call.emit(OpKind.CONCAT, [negated, first], x.shape, x.dtype, axis=len(half) - 1)
    # [batch, length, width] or [batch, heads, length, size]
    steps = (x.shape[0], x.shape[-2] if len(x.shape) > 3 else x.shape[1])
    cosine, sine = (rotary_rows(call, call.required(place), positions, steps) for place in tables)
    return _sum(call, x, turned, cosine, sine)


def _sum(call: Call, x: Value, turned: Value, cosine: Value | None, sine: Value | None) -> Value:
    left = call.emit(OpKind.MUL, [x, cosine], x.shape, x.dtype)
    right = call.emit(OpKind.MUL, [turned, sine], x.shape, x.dtype)
    return call.emit(OpKind.ADD, [left, right], x.shape, x.dtype)
