"""Attention of onnxruntime over sequences without their padding, in windows, and over cached keys of decoders."""

from __future__ import annotations

from dippm.frontends.onnx.ops.attention import append_past, attend, merge_heads, slice_last, split_heads
from dippm.frontends.onnx.ops.matmul import multiply
from dippm.frontends.onnx.ops.registry import MICROSOFT, rule
from dippm.frontends.onnx.values import Call, ShapeError, Value
from dippm.graph import DType, OpKind

__all__: list[str] = []

# Positions of DecoderAttention's inputs that say which keys it takes.
_STATIC_KEYS, _USES_PAST = 8, 9


@rule("RemovePadding", domain=MICROSOFT)
def remove_padding(call: Call) -> list[Value]:
    """The tokens of all sequences in a row; no sequence is taken to be padded."""
    x = call.required(0)
    if len(x.shape) != 3:
        raise ShapeError("its input must have three dimensions")
    batch, length, width = x.shape
    tokens = call.emit(OpKind.GATHER, [x], (batch * length, width), x.dtype)
    sizes = ((batch, length), (batch + 1,), (1,))
    return [tokens, *call.emit_many(OpKind.SORT, [call.required(1)], [(shape, DType.INT32) for shape in sizes])]


@rule("RestorePadding", domain=MICROSOFT)
def restore_padding(call: Call) -> Value:
    """The tokens back in their sequences."""
    x, offsets = call.required(0), call.required(1)
    if len(x.shape) != 2 or len(offsets.shape) != 2:
        raise ShapeError("its tokens and their offsets must have two dimensions")
    return call.emit(OpKind.SCATTER, [x, offsets], (*offsets.shape, x.shape[1]), x.dtype)


@rule("PackedAttention", domain=MICROSOFT)
def attend_packed(call: Call) -> Value:
    """The projection of all tokens, then attention in each sequence."""
    x, weight, bias = call.required(0), call.required(1), call.optional(2)
    projected = multiply(call, x, weight, x.dtype)
    projected = call.add(projected, bias)
    sizes = call.ints_attribute("qkv_hidden_sizes") or [weight.shape[-1] // 3] * 3
    if len(projected.shape) != 2 or len(sizes) != 3 or sum(sizes) != projected.shape[1]:
        raise ShapeError(f"sizes {sizes[:3]} do not make up what {list(weight.shape)} makes of {list(x.shape)}")
    return _attend_tokens(call, *slice_last(call, projected, sizes), offsets=call.required(3), bias=call.optional(5))


@rule("PackedMultiHeadAttention", domain=MICROSOFT)
def attend_packed_heads(call: Call) -> Value:
    """Attention in each sequence over tokens that are projected already."""
    x, key, value, bias = call.required(0), call.optional(1), call.optional(2), call.optional(3)
    if key is None or value is None:
        if len(x.shape) != 4:
            raise ShapeError("it lacks keys or values")
        tokens, heads, _, size = x.shape
        pieces = [call.view(x, (tokens, heads, size), "select", axis=2) for _ in range(3)]
        parts = [call.view(piece, (tokens, heads * size), "reshape") for piece in pieces]
    else:
        parts = [x, key, value]
    if bias is not None:
        addends = slice_last(call, bias, [part.shape[-1] for part in parts])
        parts = [call.add(part, addend) for part, addend in zip(parts, addends, strict=True)]
    return _attend_tokens(call, *parts, offsets=call.required(4), bias=call.optional(6))


def _attend_tokens(call: Call, q: Value, k: Value, v: Value, *, offsets: Value, bias: Value | None) -> Value:
    """Attention of [tokens, heads * size] in sequences of one length: the mean, where the tokens divide so."""
    if len(q.shape) != 2 or len(offsets.shape) != 2:
        raise ShapeError("its tokens and their offsets must have two dimensions")
    batch, tokens = offsets.shape[0], q.shape[0]
    if tokens % batch:
        batch = 1  # as many as there are, all in one sequence: at most what they cost
    heads = call.int_attribute("num_heads", 1)
    q, k, v = (
        split_heads(call, call.view(part, (batch, tokens // batch, part.shape[1]), "reshape"), heads)
        for part in (q, k, v)
    )
    result = attend(call, q, k, v, bias)
    return call.view(merge_heads(call, result), (tokens, v.shape[1] * v.shape[3]), "reshape")


@rule("LongformerAttention", domain=MICROSOFT)
def attend_in_windows(call: Call) -> Value:
    """Two projections, then attention of blocks of queries to the block before, their own and the one behind."""
    x, window = call.required(0), call.int_attribute("window", 1)
    heads = call.int_attribute("num_heads", 1)
    if len(x.shape) != 3 or window < 1:
        raise ShapeError("its input must have three dimensions, and its window a size")
    batch, length, width = x.shape
    projections = []
    for weight, bias in ((1, 2), (4, 5)):
        projected = multiply(call, x, call.required(weight), x.dtype)
        addend = call.required(bias)
        projections.append(call.add(projected, addend))
    if projections[0].shape[2] != 3 * width or length % window:
        raise ShapeError(f"{list(x.shape)} does not split into windows of {window} and three projections")
    q, k, v = slice_last(call, projections[0], [width] * 3)
    blocks = batch * (length // window)
    q = call.view(q, (blocks, window, width), "reshape")
    k, v = (call.emit(OpKind.COPY, [part], (blocks, 3 * window, width), x.dtype, function="im2col") for part in (k, v))
    result = attend(call, *(split_heads(call, part, heads) for part in (q, k, v)))
    result = call.view(merge_heads(call, result), x.shape, "reshape")
    # What the tokens with global attention see is written over theirs; how many they are, only the input tells.
    return call.emit(OpKind.SCATTER, [result, projections[1]], x.shape, x.dtype)


@rule("DecoderAttention", domain=MICROSOFT)
def attend_of_decoder(call: Call) -> list[Value]:
    """Projections and attention with the time in front, over the decoder's own keys or over an encoder's."""
    x, key, bias = call.required(0), call.required(1), call.required(4)
    heads = call.int_attribute("num_heads", 1)
    is_static, has_past = (bool((call.known_ints(position) or [0])[0]) for position in (_STATIC_KEYS, _USES_PAST))
    if len(x.shape) != 3 or len(key.shape) != 3 or len(bias.shape) != 1:
        raise ShapeError("its query and key must have three dimensions")
    width = x.shape[2]
    own, others = slice_last(call, bias, [width, 2 * width])
    q = _project(call, x, 2, own, heads)[0]
    past = [call.optional(6), call.optional(7)]
    if has_past and is_static and None not in past:
        k, v = (call.required(position) for position in (6, 7))
    else:
        k, v = _project(call, key if is_static else x, 3, others, heads)
        if has_past:
            k, v = (append_past(call, before, now) for before, now in zip(past, (k, v), strict=True))
    result = attend(call, q, k, v)
    length, batch, _ = x.shape
    turned = call.view(result, (length, batch, heads, result.shape[3]), "transpose", perm=(2, 0, 1, 3))
    return [call.view(turned, x.shape, "reshape"), k, v]


def _project(call: Call, x: Value, weight: int, bias: Value, heads: int) -> list[Value]:
    """What a layer makes of [length, batch, width], in pieces of that width as [batch, heads, length, size]."""
    projected = multiply(call, x, call.required(weight), x.dtype)
    projected = call.add(projected, bias)
    length, batch, width = x.shape
    if heads < 1 or width % heads:
        raise ShapeError(f"{width} does not split into {heads} heads")
    pieces = slice_last(call, projected, [width] * (projected.shape[2] // width))
    apart = [call.view(piece, (length, batch, heads, width // heads), "reshape") for piece in pieces]
    shape = (batch, heads, length, width // heads)
    return [call.view(piece, shape, "transpose", perm=(1, 2, 0, 3)) for piece in apart]
