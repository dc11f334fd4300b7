"""Operators that run along dimensions: reductions, softmax, running sums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dippm.costs.decompositions import FLOPS_PER_ELEMENT, count_flops, warn_of_decomposition
from dippm.frontends.onnx.ops.folding import fold
from dippm.frontends.onnx.ops.registry import rule
from dippm.frontends.onnx.program import Array
from dippm.frontends.onnx.routing import EVENLY, found_in
from dippm.frontends.onnx.values import Call, OpenSizeError, ShapeError, Value, normalize_axis, numel
from dippm.graph import DType, OpKind

__all__ = ["reduce", "softmax"]

_FUNCTIONS: dict[str, tuple[str, Callable[..., Array] | None]] = {
    "ReduceMean": ("mean", np.mean),
    "ReduceSum": ("sum", np.sum),
    "ReduceMax": ("max", np.max),
    "ReduceMin": ("min", np.min),
    "ReduceProd": ("prod", np.prod),
    "ReduceL1": ("l1", None),
    "ReduceL2": ("norm", None),
    "ReduceLogSum": ("log_sum", None),
    "ReduceLogSumExp": ("log_sum_exp", None),
    "ReduceSumSquare": ("sum_square", None),
}


@rule(*_FUNCTIONS)
def reduce(call: Call) -> Value:
    """One number for each slice along the axes."""
    function, numpy_function = _FUNCTIONS[call.op.op_type.removeprefix("QLinear")]
    x = call.required(0)
    rank = len(x.shape)
    wanted = call.known_ints(1)
    if wanted is None:
        if call.optional(1) is not None:
            raise OpenSizeError("its axes depend on values that are not known")
        wanted = call.ints_attribute("axes")
    if not wanted:
        if call.int_attribute("noop_with_empty_axes"):
            return x
        wanted = list(range(rank))
    axes = tuple(sorted({normalize_axis(axis, rank) for axis in wanted}))
    is_kept = bool(call.int_attribute("keepdims", 1))
    reduced = set(axes)
    shape = tuple(1 if axis in reduced else size for axis, size in enumerate(x.shape) if is_kept or axis not in reduced)
    if numpy_function is not None and x.data is not None and x.data.size:
        known = fold(call, [x], lambda data: numpy_function(data, axis=axes, keepdims=is_kept).astype(data.dtype))
        if known is not None:
            return known
    return call.emit(OpKind.REDUCE, [x], shape, x.dtype, function=function, axes=axes)


@rule("ArgMax", "ArgMin")
def arg_reduce(call: Call) -> Value:
    """Where the largest or smallest element stands."""
    x = call.required(0)
    axis = normalize_axis(call.int_attribute("axis"), len(x.shape))
    kept = (1,) if call.int_attribute("keepdims", 1) else ()
    shape = (*x.shape[:axis], *kept, *x.shape[axis + 1 :])
    return call.emit(OpKind.REDUCE, [x], shape, DType.INT64, function=call.op.op_type.lower(), axes=(axis,))


@rule("Softmax", "LogSoftmax", "Hardmax")
def softmax(call: Call) -> Value:
    """Shares along an axis; before opset 13 along all dimensions from the axis on."""
    x = call.required(0)
    kind = OpKind.LOG_SOFTMAX if call.op.op_type == "LogSoftmax" else OpKind.SOFTMAX
    if not x.shape:
        return call.emit(kind, [x], x.shape, x.dtype, axes=())
    is_flattened = call.op.version < 13 and call.op.domain == ""
    axis = normalize_axis(call.int_attribute("axis", 1 if is_flattened and len(x.shape) > 1 else -1), len(x.shape))
    axes = tuple(range(axis, len(x.shape))) if is_flattened else (axis,)
    return call.emit(kind, [x], x.shape, x.dtype, axes=axes)


@rule("CumSum", "CumProd")
def cumulative(call: Call) -> Value:
    """Running sums along an axis."""
    x = call.required(0)
    axis = call.optional(1)
    if axis is not None and axis.is_number and x.is_constant and call.op.op_type == "CumSum" and x.shape:
        where = normalize_axis(axis.integer(), len(x.shape))
        if not call.int_attribute("exclusive") and not call.int_attribute("reverse"):
            known = fold(call, [x], lambda data: np.cumsum(data, axis=where).astype(data.dtype))
            if known is not None:
                return known
    return call.emit(OpKind.CUMULATIVE, [x], x.shape, x.dtype, function=call.op.op_type.lower())


@rule("TopK")
def top_k(call: Call) -> list[Value]:
    """The largest elements along an axis and where they stand; all of them are that axis sorted."""
    x = call.required(0)
    axis = normalize_axis(call.int_attribute("axis", -1), len(x.shape))
    wanted = call.known_ints(1)
    count = x.shape[axis]
    if wanted:
        count = wanted[0]
    elif call.optional(1) is None:
        count = call.int_attribute("k", count)
    else:
        call.warn("TopK takes as many elements as its data says; all of them are counted.")
    if not 0 <= count <= x.shape[axis]:
        raise ShapeError(f"it asks for {count} of {x.shape[axis]} elements")
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    # ONNX has no other operator that sorts.
    function = "sort" if count == x.shape[axis] else "topk"
    return call.emit_many(
        OpKind.SORT, [x], [(shape, x.dtype), (shape, DType.INT64)], attributes={"function": function, "axes": (axis,)}
    )


@rule("Unique")
def unique(call: Call) -> list[Value]:
    """Elements without repetitions; at most all of them."""
    x = call.required(0)
    call.warn("Unique keeps as many elements as its data says; all of them are counted.")
    axis = call.op.attributes.get("axis")
    size = numel(x.shape)
    shape: tuple[int, ...] = (size,)
    if isinstance(axis, int):
        shape, size = x.shape, x.shape[normalize_axis(axis, len(x.shape))]
    outputs = [(shape, x.dtype), *(((size,), DType.INT64) for _ in range(3))]
    return call.emit_many(OpKind.SORT, [x], outputs, attributes={"function": "unique"})


@rule("NonZero")
def non_zero(call: Call) -> Value:
    """Where the elements are not zero: at a share of the places that a choice has, else at most everywhere."""
    x = call.required(0)
    if x.is_constant and x.data is not None and x.data.ndim:
        return call.constant(np.array(np.nonzero(x.data), dtype=np.int64), [x])
    call.warn(
        EVENLY if 0 < x.share < 1 else "NonZero finds as many elements as its data says; all of them are counted."
    )
    return call.emit(OpKind.GATHER, [x], (len(x.shape), found_in(x)), DType.INT64, function="nonzero")


@rule("Det")
def determinant(call: Call) -> Value:
    """One number for each matrix."""
    x = call.required(0)
    if len(x.shape) < 2 or not numel(x.shape):
        return call.emit(OpKind.UNKNOWN, [x], x.shape[:-2], x.dtype)
    flops = count_flops("lu", x.shape[-2], x.shape[-1]) / (x.shape[-2] * x.shape[-1])
    call.warn(warn_of_decomposition("Det"))
    return call.emit(OpKind.UNKNOWN, [x], x.shape[:-2], x.dtype, **{FLOPS_PER_ELEMENT: flops})


@rule("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(call: Call) -> list[Value]:
    """The loss of a classification."""
    x, target = call.required(0), call.required(1)
    result = x
    if call.op.op_type == "SoftmaxCrossEntropyLoss":
        axes = (1,) if len(x.shape) > 1 else ()
        result = call.emit(OpKind.LOG_SOFTMAX, [x], x.shape, x.dtype, axes=axes)
    shape = target.shape if call.text_attribute("reduction", "mean") == "none" else ()
    value = call.emit(OpKind.REDUCE, [result, target], shape, x.dtype, function="nll_loss", axes=())
    return [value, result]
