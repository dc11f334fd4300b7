"""Operators of other domains that leave the shape alone or carry it in an attribute."""

from __future__ import annotations

from dippm.frontends.onnx.ops.registry import MICROSOFT, rule
from dippm.frontends.onnx.values import Call, ShapeError, Value, normalize_axis
from dippm.graph import OpKind

__all__: list[str] = []


@rule("BiasSoftmax", domain=MICROSOFT)
def bias_softmax(call: Call) -> Value:
    """An addition, then a softmax."""
    x, bias = call.required(0), call.required(1)
    total = call.add(x, bias)
    axis = normalize_axis(call.int_attribute("axis", 1), len(x.shape))
    return call.emit(OpKind.SOFTMAX, [total], x.shape, x.dtype, axes=(axis,))


@rule("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(call: Call) -> Value:
    """An addition, one half through GELU, times the other half."""
    x, bias = call.required(0), call.required(1)
    if not x.shape or x.shape[-1] % 2:
        raise ShapeError("its last dimension must be even")
    total = call.add(x, bias)
    half = (*x.shape[:-1], x.shape[-1] // 2)
    left, right = (call.view(total, half, "slice", axis=len(half) - 1) for _ in range(2))
    active = call.emit(OpKind.GELU, [right], half, x.dtype)
    return call.emit(OpKind.MUL, [left, active], half, x.dtype)


@rule("BiasAdd", domain=MICROSOFT)
def bias_add(call: Call) -> Value:
    """Two additions."""
    x = call.required(0)
    return call.add(call.add(x, call.required(1)), call.required(2))


@rule("BiasDropout", "BitmaskDropout", domain=MICROSOFT)
def bias_dropout(call: Call) -> list[Value]:
    """An addition and a residual; the dropout of these kernels is taken as idle, in training too."""
    x = call.required(0)
    for position in (1, 2):
        other = call.optional(position)
        if other is not None and call.op.op_type == "BiasDropout" and other.shape:
            x = call.add(x, other)
    return [x, x]


@rule("CropAndResize", domain=MICROSOFT)
def crop_and_resize(call: Call) -> Value:
    """Each region resized."""
    x, regions = call.required(0), call.required(1)
    sizes = call.known_ints(3)
    if len(x.shape) != 4 or sizes is None or len(sizes) != 2 or not regions.shape:
        raise ShapeError("its crop size is not known")
    return call.emit(OpKind.GRID_SAMPLE, [x, regions], (regions.shape[0], x.shape[1], *sizes), x.dtype, mode="linear")
