"""Pooling."""

from __future__ import annotations

from dippm.frontends.onnx.ops.convolution import pad_if_uneven, read_window
from dippm.frontends.onnx.ops.registry import MICROSOFT, rule
from dippm.frontends.onnx.values import Call, ShapeError, Value
from dippm.graph import DType, OpKind

__all__ = ["global_pool", "pool"]


@rule("MaxPool", "AveragePool", "LpPool")
@rule("NhwcMaxPool", domain=MICROSOFT)
def pool(call: Call) -> list[Value]:
    """A function of each window."""
    x = call.required(0)
    kernel = call.ints_attribute("kernel_shape")
    if len(x.shape) < 3 or kernel is None:
        raise ShapeError("it needs a kernel shape and at least one spatial dimension")
    is_last = call.op.op_type == "NhwcMaxPool" or bool(call.int_attribute("channels_last"))
    channels = x.shape[-1] if is_last else x.shape[1]
    sizes = x.shape[1:-1] if is_last else x.shape[2:]
    window = read_window(call, sizes, kernel)
    spatial = window.output(sizes, is_ceil=bool(call.int_attribute("ceil_mode")))
    shape = (x.shape[0], *spatial, channels) if is_last else (x.shape[0], channels, *spatial)
    if not is_last:
        x = pad_if_uneven(call, x, window)
    kind = OpKind.MAX_POOL if "MaxPool" in call.op.op_type else OpKind.AVG_POOL
    outputs = [(shape, x.dtype)]
    if len(call.op.outputs) > 1:
        outputs.append((shape, DType.INT64))
    attributes = window.attributes()
    if kind is OpKind.AVG_POOL:
        del attributes["dilation"]
        if shape == x.shape and set(window.kernel) == {1}:
            # Adaptive pooling to the size that its input has already.
            return [call.emit(OpKind.GLOBAL_POOL, [x], shape, x.dtype, output_size=spatial, function="mean")]
    return call.emit_many(kind, [x], outputs, attributes=attributes)


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(call: Call) -> Value:
    """A function of each channel."""
    x = call.required(0)
    if len(x.shape) < 2:
        raise ShapeError("it needs at least two dimensions")
    rank = len(x.shape) - 2
    if call.int_attribute("channels_last"):
        shape = (x.shape[0], *(1,) * rank, x.shape[-1])
    else:
        shape = (*x.shape[:2], *(1,) * rank)
    function = "max" if call.op.op_type == "GlobalMaxPool" else "mean"
    return call.emit(OpKind.GLOBAL_POOL, [x], shape, x.dtype, output_size=(1,) * rank, function=function)


@rule("MaxUnpool")
def max_unpool(call: Call) -> Value:
    """Maxima put back where they came from."""
    x = call.required(0)
    kernel = call.ints_attribute("kernel_shape")
    wanted = call.known_ints(2)
    if wanted is not None:
        shape = tuple(wanted)
    elif kernel is None or len(kernel) + 2 != len(x.shape):
        raise ShapeError("it needs a kernel shape that fits its input")
    else:
        window = read_window(call, x.shape[2:], kernel)
        spatial = (
            (size - 1) * window.stride[axis] + window.kernel[axis] - window.before[axis] - window.after[axis]
            for axis, size in enumerate(x.shape[2:])
        )
        shape = (*x.shape[:2], *spatial)
    return call.emit(OpKind.SCATTER, [x, call.required(1)], shape, x.dtype, function="max_unpool")


@rule("MaxRoiPool")
def max_roi_pool(call: Call) -> Value:
    """The maximum of each cell of each region."""
    x, regions = call.required(0), call.required(1)
    cells = call.ints_attribute("pooled_shape") or [1, 1]
    if len(x.shape) != 4 or not regions.shape:
        raise ShapeError("it needs an NCHW input and a list of regions")
    shape = (regions.shape[0], x.shape[1], *cells[:2])
    return call.emit(OpKind.GRID_SAMPLE, [x, regions], shape, x.dtype, mode="max")
