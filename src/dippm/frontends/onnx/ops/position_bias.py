"""What is added to the scores of attention for the distance between two positions."""

from __future__ import annotations

from dippm.frontends.onnx.ops.registry import MICROSOFT, rule
from dippm.frontends.onnx.ops.unknown import infer_unknown
from dippm.frontends.onnx.values import Call, ShapeError, Value
from dippm.graph import DType, OpKind

__all__: list[str] = []


@rule("RelativePositionBias", domain=MICROSOFT)
def relative_position_bias(call: Call) -> Value | list[Value]:
    """T5's: the bucket of each distance looked up in a table of [buckets, heads]."""
    table = call.required(0)
    sizes = [call.known_ints(position) for position in (1, 2)]
    if len(table.shape) != 2:
        raise ShapeError("its table must be [buckets, heads]")
    if any(size is None or len(size) != 1 for size in sizes):
        return infer_unknown(call)
    queries, keys = (size[0] for size in sizes if size is not None)
    heads = table.shape[1]
    buckets = call.emit(OpKind.FILL, [], (queries, keys), DType.INT64, function="buckets")
    biases = call.emit(OpKind.EMBEDDING, [table, buckets], (queries, keys, heads), table.dtype)
    return call.view(biases, (1, heads, queries, keys), "transpose", perm=(2, 0, 1))


@rule("GatedRelativePositionBias", domain=MICROSOFT)
def gated_relative_position_bias(call: Call) -> Value:
    """WavLM's: a table of biases times a gate that each query computes for itself."""
    query, bias, distances, weight = (call.required(position) for position in range(4))
    gate_bias, scale = call.required(4), call.required(5)
    heads = call.int_attribute("num_heads", 1)
    if len(query.shape) != 3 or heads < 1 or query.shape[2] % heads or len(distances.shape) != 4:
        raise ShapeError(f"{list(query.shape)} does not split into {heads} heads")
    batch, length, width = query.shape
    size = width // heads
    if len(weight.shape) != 2 or weight.shape[0] != size or weight.shape[1] % 2:
        raise ShapeError(f"{size} columns of a head meet weights of {list(weight.shape)}")
    columns, dtype = weight.shape[1], query.dtype
    x = call.emit(OpKind.ADD, [query, bias], query.shape, dtype)
    x = call.view(x, (batch, length, heads, size), "reshape")
    x = call.view(x, (batch, heads, length, size), "transpose", perm=(0, 2, 1, 3))
    x = call.emit(OpKind.LINEAR, [x, weight, gate_bias], (batch, heads, length, columns), dtype)
    x = call.view(x, (batch, heads, length, 2, columns // 2), "reshape")
    x = call.emit(OpKind.REDUCE, [x], (batch, heads, length, 2), dtype, function="sum", axes=(4,))
    x = call.emit(OpKind.SIGMOID, [x], x.shape, dtype)
    gates = (batch, heads, length, 1)
    first, second = (call.view(x, gates, "slice", axis=3) for _ in range(2))
    second = call.emit(OpKind.MUL, [second, scale], gates, dtype)
    second = call.emit(OpKind.SUB, [second], gates, dtype, scalar=1.0)
    gate = call.emit(OpKind.MUL, [first, second], gates, dtype)
    gate = call.emit(OpKind.ADD, [gate], gates, dtype, scalar=2.0)
    return call.emit(OpKind.MUL, [gate, distances], (batch, heads, *distances.shape[2:]), dtype)
