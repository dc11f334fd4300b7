"""Attention as one operator: the standard one and onnxruntime's fused ones."""

from __future__ import annotations

from collections.abc import Sequence

from dippm.frontends.onnx.ops.matmul import multiply
from dippm.frontends.onnx.ops.registry import MICROSOFT, rule
from dippm.frontends.onnx.ops.rotary import rotary_rows
from dippm.frontends.onnx.program import ABSENT
from dippm.frontends.onnx.values import Call, ShapeError, Value
from dippm.graph import OpKind

__all__ = ["packed_attention"]

# Where the positions in the sequence are told, and where the tables of cosines and sines stand.
_ROTARY_INPUTS = {"GroupQueryAttention": (5, 7, 8), "SparseAttention": (8, 9, 10)}


def split_heads(call: Call, x: Value, heads: int) -> Value:
    """[batch, length, heads * size] seen as [batch, heads, length, size]."""
    if len(x.shape) != 3 or heads < 1 or x.shape[2] % heads:
        raise ShapeError(f"{list(x.shape)} does not split into {heads} heads")
    batch, length, width = x.shape
    size = width // heads
    apart = call.view(x, (batch, length, heads, size), "reshape")
    return call.view(apart, (batch, heads, length, size), "transpose", perm=(0, 2, 1, 3))


def merge_heads(call: Call, x: Value) -> Value:
    """[batch, heads, length, size] seen as [batch, length, heads * size]."""
    batch, heads, length, size = x.shape
    turned = call.view(x, (batch, length, heads, size), "transpose", perm=(0, 2, 1, 3))
    return call.view(turned, (batch, length, heads * size), "reshape")


def _check_heads(q: Value, k: Value, v: Value) -> None:
    """Refuse queries, keys and values that do not fit together."""
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        raise ShapeError("its query, key and value must have four dimensions")
    if q.shape[3] != k.shape[3] or k.shape[2] != v.shape[2] or k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ShapeError(f"a query {list(q.shape)}, a key {list(k.shape)} and a value {list(v.shape)} do not fit")


def attend(call: Call, q: Value, k: Value, v: Value, mask: Value | None = None, *, is_causal: bool = False) -> Value:
    """softmax(q k^T) v over heads of shape [batch, heads, length, size]."""
    _check_heads(q, k, v)
    shape = (*q.shape[:3], v.shape[3])
    # Queries with a past see all of it: hardly anything lies above their diagonal.
    is_causal = is_causal and k.shape[2] <= q.shape[2]
    return call.emit(OpKind.ATTENTION, [q, k, v, mask], shape, q.dtype, is_causal=is_causal)


def append_past(call: Call, past: Value | None, present: Value) -> Value:
    """Keys or values of earlier steps with those of this one."""
    if past is None or len(past.shape) != 4 or len(present.shape) != 4:
        return present
    if call.int_attribute("past_present_share_buffer"):
        # They are written into a buffer for all steps to come; how much of it is filled is not known.
        return call.emit(OpKind.SCATTER, [past, present], past.shape, present.dtype)
    shape = (*present.shape[:2], past.shape[2] + present.shape[2], present.shape[3])
    return call.emit(OpKind.CONCAT, [past, present], shape, present.dtype, axis=2)


def _turned(call: Call, k: Value) -> Value:
    """Keys with their sizes in front of their places, as a product with queries takes them."""
    return call.view(k, (*k.shape[:2], k.shape[3], k.shape[2]), "transpose", perm=(0, 1, 3, 2))


def _repeat_heads(call: Call, q: Value, x: Value) -> Value:
    """Keys or values that several heads of the queries share, once for each of them."""
    if x.shape[1] == q.shape[1]:
        return x
    return call.emit(OpKind.COPY, [x], (x.shape[0], q.shape[1], *x.shape[2:]), x.dtype, function="repeat")


def _attend_in_steps(
    call: Call, q: Value, k: Value, v: Value, mask: Value | None = None, *, is_causal: bool = False, cap: float = 0.0
) -> list[Value]:
    """What :func:`attend` makes where a kernel of attention cannot: each step on its own, as PyTorch runs it eagerly.

    Returns:
        The result, then the products of queries and keys, the same with the mask, held within the cap, and as shares.
    """
    _check_heads(q, k, v)
    k, v = _repeat_heads(call, q, k), _repeat_heads(call, q, v)
    q = call.emit(OpKind.MUL, [q], q.shape, q.dtype, scalar=call.float_attribute("scale", 1.0))
    shape = (*q.shape[:3], k.shape[2])
    steps = [call.emit(OpKind.MATMUL, [q, _turned(call, k)], shape, q.dtype)]
    masked = call.add(steps[-1], mask)
    steps.append(call.emit(OpKind.ADD, [masked], shape, q.dtype) if is_causal else masked)
    if cap > 0.0:
        below = call.emit(OpKind.DIV, [steps[-1]], shape, q.dtype, scalar=cap)
        below = call.emit(OpKind.TANH, [below], shape, q.dtype)
        steps.append(call.emit(OpKind.MUL, [below], shape, q.dtype, scalar=cap))
    else:
        steps.append(steps[-1])
    steps.append(call.emit(OpKind.SOFTMAX, [steps[-1]], shape, q.dtype, axes=(3,)))
    return [call.emit(OpKind.MATMUL, [steps[-1], v], (*q.shape[:3], v.shape[3]), q.dtype), *steps]


@rule("Attention")
def attention(call: Call) -> list[Value]:
    """The standard operator (opset 23); in steps where its scores are capped or given out."""
    q, k, v = (call.required(position) for position in range(3))
    is_flat = len(q.shape) == 3
    if is_flat:
        heads = call.int_attribute("q_num_heads")
        kv_heads = call.int_attribute("kv_num_heads")
        q, k, v = split_heads(call, q, heads), split_heads(call, k, kv_heads), split_heads(call, v, kv_heads)
    k, v = append_past(call, call.optional(4), k), append_past(call, call.optional(5), v)
    is_causal, cap = bool(call.int_attribute("is_causal")), call.float_attribute("softcap")
    gives_scores = len(call.op.outputs) > 3 and call.op.outputs[3] != ABSENT
    if gives_scores or cap > 0.0:
        result, *steps = _attend_in_steps(call, q, k, v, call.optional(3), is_causal=is_causal, cap=cap)
    else:
        result, steps = attend(call, q, k, v, call.optional(3), is_causal=is_causal), []
    outputs = [merge_heads(call, result) if is_flat else result, k, v]
    if gives_scores:
        mode = call.int_attribute("qk_matmul_output_mode")
        if not 0 <= mode < len(steps):
            raise ShapeError(f"its qk_matmul_output_mode must be 0 to 3, not {mode}")
        outputs.append(steps[mode])
    return outputs


@rule("Attention", domain=MICROSOFT)
def packed_attention(call: Call) -> list[Value]:
    """The projection to queries, keys and values, then attention."""
    x, weight, bias = call.required(0), call.required(1), call.optional(2)
    if len(x.shape) != 3 or len(weight.shape) != 2:
        raise ShapeError("its input must have three dimensions and its weight two")
    heads = call.int_attribute("num_heads", 1)
    projected = multiply(call, x, weight, x.dtype)
    projected = call.add(projected, bias)
    sizes = call.ints_attribute("qkv_hidden_sizes") or [weight.shape[1] // 3] * 3
    if len(sizes) != 3 or sum(sizes) != projected.shape[2]:
        raise ShapeError(f"sizes {sizes[:3]} do not make up {projected.shape[2]}")
    q, k, v = (split_heads(call, part, heads) for part in slice_last(call, projected, sizes))
    past = call.optional(4)
    if past is not None:
        if len(past.shape) != 5 or past.shape[0] != 2:
            raise ShapeError(f"its past must be [2, batch, heads, length, size], not {list(past.shape)}")
        k, v = (append_past(call, call.view(past, past.shape[1:], "select", axis=0), present) for present in (k, v))
    result = attend(call, q, k, v, _mask(call, 5, 3), is_causal=bool(call.int_attribute("unidirectional")))
    outputs = [merge_heads(call, result)]
    if len(call.op.outputs) > 1 and call.op.outputs[1] != ABSENT:
        outputs.append(call.emit(OpKind.CONCAT, [k, v], (2, *k.shape), k.dtype, axis=0))
    return outputs


@rule("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(call: Call) -> list[Value]:
    """Attention over queries, keys and values that are projected already."""
    return _attend_projected(call, bias=3, masks=(5, 4), past=(6, 7))


@rule("DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
def decoder_masked_multi_head_attention(call: Call) -> list[Value]:
    """The same for one step of a decoder."""
    return _attend_projected(call, bias=10, masks=(4, 3), past=(5, 6))


def _attend_projected(call: Call, *, bias: int, masks: tuple[int, int], past: tuple[int, int]) -> list[Value]:
    """Attention after the projections, given the positions of what two operators order differently."""
    q, k, v = _projected(call, call.optional(bias))
    k, v = (append_past(call, call.optional(place), present) for place, present in zip(past, (k, v), strict=True))
    result = attend(call, q, k, v, _mask(call, *masks), is_causal=bool(call.int_attribute("unidirectional")))
    return [merge_heads(call, result), k, v]


def _projected(call: Call, bias: Value | None) -> list[Value]:
    """Queries, keys and values of [batch, heads, length, size] in each of the layouts that onnxruntime takes."""
    x, key, value = call.required(0), call.optional(1), call.optional(2)
    heads = call.int_attribute("num_heads", 1)
    if key is None:
        # [batch, length, heads, 3, size] or [batch, length, 3 * heads * size]
        x = call.add(x, bias)
        if len(x.shape) == 5:
            return _unpack(call, x, 3)
        if len(x.shape) != 3 or x.shape[2] % 3:
            raise ShapeError("it lacks keys or values")
        return [split_heads(call, part, heads) for part in slice_last(call, x, [x.shape[2] // 3] * 3)]
    if value is None:
        # [batch, length, heads, 2, size]
        if len(key.shape) != 5:
            raise ShapeError("it lacks keys or values")
        parts = [x, *_unpack(call, key, 2)]
    else:
        parts = [x, key, value]
    if bias is not None:
        # Those in heads already, of another sequence, have theirs.
        flat = [position for position, part in enumerate(parts) if len(part.shape) == 3]
        addends = slice_last(call, bias, [parts[position].shape[2] for position in flat])
        for position, addend in zip(flat, addends, strict=True):
            part = parts[position]
            parts[position] = call.add(part, addend)
    return [part if len(part.shape) == 4 else split_heads(call, part, heads) for part in parts]


def _unpack(call: Call, x: Value, count: int) -> list[Value]:
    """[batch, length, heads, count, size] seen as as many tensors of [batch, heads, length, size]."""
    if x.shape[3] != count:
        raise ShapeError(f"its packed tensor must be [batch, length, heads, {count}, size], not {list(x.shape)}")
    batch, length, heads, _, size = x.shape
    pieces = [call.view(x, (batch, length, heads, size), "select", axis=3) for _ in range(count)]
    return [call.view(piece, (batch, heads, length, size), "transpose", perm=(0, 2, 1, 3)) for piece in pieces]


def slice_last(call: Call, x: Value, widths: Sequence[int]) -> list[Value]:
    """Neighbouring pieces of the last dimension."""
    axis = len(x.shape) - 1
    return [call.view(x, (*x.shape[:axis], width), "slice", axis=axis) for width in widths]


def _mask(call: Call, *positions: int) -> Value | None:
    """The first mask or bias of the scores that is one by its shape, not the lengths of the sequences."""
    given = (call.optional(position) for position in positions)
    return next((mask for mask in given if mask is not None and len(mask.shape) > 2), None)


@rule("GroupQueryAttention", "SparseAttention", domain=MICROSOFT)
def group_query_attention(call: Call) -> list[Value]:
    """Attention whose keys and values are shared by several heads, with a cache."""
    x = call.required(0)
    key, value = call.optional(1), call.optional(2)
    heads = call.int_attribute("num_heads", 1)
    kv_heads = call.int_attribute("kv_num_heads", heads)
    if key is None or value is None:
        total = heads + 2 * kv_heads
        if len(x.shape) != 3 or total < 1 or x.shape[2] % total:
            raise ShapeError(f"{list(x.shape)} does not split into {total} heads")
        size = x.shape[2] // total
        x, key, value = slice_last(call, x, [heads * size, kv_heads * size, kv_heads * size])
    q, k, v = split_heads(call, x, heads), split_heads(call, key, kv_heads), split_heads(call, value, kv_heads)
    if call.int_attribute("do_rotary"):
        positions, *tables = _ROTARY_INPUTS[call.op.op_type]
        rows = [
            rotary_rows(call, call.optional(place), call.optional(positions), (x.shape[0], x.shape[1]))
            for place in tables
        ]
        q, k = (call.emit(OpKind.BINARY, [part, *rows], part.shape, part.dtype, function="rotary") for part in (q, k))
    k, v = append_past(call, call.optional(3), k), append_past(call, call.optional(4), v)
    cap = call.float_attribute("softcap")
    if cap > 0.0:
        result = _attend_in_steps(call, q, k, v, is_causal=k.shape[2] <= q.shape[2], cap=cap)[0]
    else:
        result = attend(call, q, k, v, is_causal=True)
    return [merge_heads(call, result), k, v]


@rule("FlexAttention", domain="ai.onnx.preview")
def flex_attention(call: Call) -> Value:
    """Attention; where the file changes its scores or shares, each step on its own, as PyTorch runs it eagerly."""
    q, k, v = (call.required(position) for position in range(3))
    changes = [call.block_attribute(name) for name in ("score_mod", "prob_mod")]
    if changes == [None, None]:
        return attend(call, q, k, v)
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4 or q.shape[3] != k.shape[3]:
        raise ShapeError("its query, key and value must have four dimensions and fit together")
    k, v = _repeat_heads(call, q, k), _repeat_heads(call, q, v)
    keys = _turned(call, k)
    shares = call.emit(OpKind.MATMUL, [q, keys], (*q.shape[:3], k.shape[2]), q.dtype)
    if changes[0] is not None:
        shares = call.evaluator.run_block(changes[0], [shares])[0]
    shares = call.emit(OpKind.SOFTMAX, [shares], shares.shape, shares.dtype, axes=(3,))
    if changes[1] is not None:
        shares = call.evaluator.run_block(changes[1], [shares])[0]
    return call.emit(OpKind.MATMUL, [shares, v], (*q.shape[:3], v.shape[3]), q.dtype)


@rule("LinearAttention")
def linear_attention(call: Call) -> list[Value]:
    """Attention without a softmax: keys and values gathered into a state that the queries read."""
    q, k, v = (call.required(position) for position in range(3))
    is_flat = len(q.shape) == 3
    if is_flat:
        heads = call.int_attribute("q_num_heads", 1)
        kv_heads = call.int_attribute("kv_num_heads", heads)
        q, k, v = split_heads(call, q, heads), split_heads(call, k, kv_heads), split_heads(call, v, kv_heads)
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        raise ShapeError("its query, key and value must have four dimensions")
    keys = _turned(call, k)
    state = call.emit(OpKind.MATMUL, [keys, v], (*k.shape[:2], k.shape[3], v.shape[3]), q.dtype)
    result = call.emit(OpKind.MATMUL, [q, state], (*q.shape[:3], v.shape[3]), q.dtype)
    return [merge_heads(call, result) if is_flat else result, state]
