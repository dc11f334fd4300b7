"""Gather and scatter."""

from __future__ import annotations

import numpy as np

from dippm.frontends.onnx.ops.registry import rule
from dippm.frontends.onnx.values import Call, OpenSizeError, ShapeError, Value, normalize_axis, numel
from dippm.graph import OpKind, TensorRole

__all__: list[str] = []


@rule("Gather")
def gather(call: Call) -> Value:
    """Slices of a tensor along an axis, by index."""
    x, indices = call.required(0), call.required(1)
    axis = normalize_axis(call.int_attribute("axis"), len(x.shape))
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    if x.is_constant and indices.data is not None and not indices.dtype.is_floating and numel(shape) <= call.data_limit:
        return _take(call, x, indices, axis)
    if indices.shape == () and indices.data is not None:
        return call.view(x, shape, "select", axis=axis)
    is_trained = x.dtype.is_floating or x.role is TensorRole.PARAMETER
    is_table = x.is_static and axis == 0 and len(x.shape) == 2 and is_trained
    if is_table and not (indices.is_static and len(indices.shape) == 1):
        return call.emit(OpKind.EMBEDDING, [x, indices], shape, x.dtype)
    if len(x.shape) == 1 and len(indices.shape) > 1 and _is_strided(call, x, indices):
        return call.view(x, _strided_shape(call, x, shape), "as_strided")
    if indices.data is not None and len(indices.shape) == 1 and len(indices.data) == 1:
        # PyTorch's code for this is a slice of one element.
        return call.view(x, shape, "slice", steps=(1,) * len(shape))
    return call.emit(OpKind.GATHER, [x, indices], shape, x.dtype, axis=axis)


def _is_strided(call: Call, x: Value, indices: Value) -> bool:
    """Whether it is an exporter's as_strided: a flat tensor and positions worked out from sizes, or all of it."""
    if indices.is_constant and indices.is_computed:
        return True
    count = numel(indices.shape)
    if x.is_static or not indices.is_static or indices.is_computed or (count,) != (call.native_shape(0) or x.shape):
        return False
    return indices.data is None or bool((indices.data.reshape(-1) == np.arange(count)).all())


def _strided_shape(call: Call, x: Value, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an ``as_strided``; where it takes each element once and the file fixes it, it follows the batch."""
    rebatching, native, native_output = call.evaluator.rebatching, call.native_shape(0), call.native_output_shape()
    if rebatching is None or native is None or native_output != shape or numel(shape) != numel(native):
        return shape
    return rebatching.reshape(native, x.shape, native_output) or shape


def _take(call: Call, x: Value, indices: Value, axis: int) -> Value:
    try:
        taken = np.take(np.asarray(x.data), np.asarray(indices.data).astype(np.int64), axis=axis)
    except IndexError as exc:
        raise ShapeError(f"an index lies outside dimension {axis} of {list(x.shape)}") from exc
    return call.constant(np.asarray(taken), [x, indices])


@rule("GatherElements")
def gather_elements(call: Call) -> Value:
    """One element for each index."""
    x, indices = call.required(0), call.required(1)
    return call.emit(OpKind.GATHER, [x, indices], indices.shape, x.dtype, axis=call.int_attribute("axis"))


@rule("GatherND")
def gather_nd(call: Call) -> Value:
    """Slices of a tensor by tuples of indices."""
    x, indices = call.required(0), call.required(1)
    batch = call.int_attribute("batch_dims")
    if not indices.shape or not 0 <= batch < len(indices.shape):
        raise ShapeError("its indices need at least one dimension after the batch")
    depth = batch + indices.shape[-1]
    if depth > len(x.shape):
        raise ShapeError(f"indices of {indices.shape[-1]} parts do not fit {len(x.shape)} dimensions")
    shape = (*indices.shape[:-1], *x.shape[depth:])
    if (
        batch == 0
        and x.is_constant
        and indices.data is not None
        and not indices.dtype.is_floating
        and numel(shape) <= call.data_limit
    ):
        where = tuple(np.moveaxis(np.asarray(indices.data).astype(np.int64), -1, 0))
        try:
            return call.constant(np.asarray(np.asarray(x.data)[where]), [x, indices])
        except IndexError as exc:
            raise ShapeError("an index lies outside its data") from exc
    return call.emit(OpKind.GATHER, [x, indices], shape, x.dtype)


@rule("Scatter", "ScatterElements", "ScatterND", "TensorScatter")
def scatter(call: Call) -> Value:
    """A copy of a tensor with some elements replaced."""
    x = call.required(0)
    if call.op.op_type == "TensorScatter":
        inputs = [x, call.optional(2), call.required(1)]
    else:
        inputs = [x, call.required(1), call.required(2)]
    if call.op.op_type == "ScatterND":
        known = _scatter_known(call, x, call.required(1), call.required(2))
        if known is not None:
            return known
    return call.emit(OpKind.SCATTER, inputs, x.shape, x.dtype, axis=call.int_attribute("axis"))


def _scatter_known(call: Call, x: Value, indices: Value, updates: Value) -> Value | None:
    if not (x.is_constant and indices.data is not None and updates.is_constant and x.role is not TensorRole.PARAMETER):
        return None
    if not indices.shape or indices.dtype.is_floating or call.text_attribute("reduction", "none") != "none":
        return None
    result = np.array(x.data)
    try:
        where = tuple(np.moveaxis(np.asarray(indices.data).astype(np.int64), -1, 0))
        result[where] = np.asarray(updates.data).astype(result.dtype)
    except (IndexError, ValueError) as exc:
        raise ShapeError("its indices or updates do not fit its data") from exc
    return call.constant(result, [x, indices, updates])


@rule("OneHot")
def one_hot(call: Call) -> Value:
    """A new dimension with a mark at each index."""
    indices, values = call.required(0), call.required(2)
    depth = call.required(1)
    if depth.data is None:
        raise OpenSizeError("its depth depends on values that are not known")
    axis = call.int_attribute("axis", -1)
    axis = normalize_axis(axis, len(indices.shape) + 1)
    shape = (*indices.shape[:axis], depth.integer(), *indices.shape[axis:])
    known = _mark_known(call, (indices, depth, values), axis, shape)
    if known is not None:
        return known
    return call.emit(OpKind.SCATTER, [indices], shape, values.dtype, function="one_hot")


def _mark_known(call: Call, inputs: tuple[Value, Value, Value], axis: int, shape: tuple[int, ...]) -> Value | None:
    """The marks themselves where all is known: exporters count by them how often a tensor is repeated."""
    if not all(value.is_constant for value in inputs) or max(numel(shape), inputs[1].integer()) > call.data_limit:
        return None
    indices, _, values = (np.asarray(value.data) for value in inputs)
    if values.shape != (2,) or inputs[1].integer() < 0:
        raise ShapeError("it needs a depth and a number for each of no mark and a mark")
    count = inputs[1].integer()
    wanted = np.where(indices < 0, indices + count, indices)
    places = np.arange(count).reshape(-1, *(1,) * (len(shape) - axis - 1))
    return call.constant(np.where(np.expand_dims(wanted, axis) == places, values[1], values[0]), inputs)


@rule("Compress")
def compress(call: Call) -> Value:
    """The elements or slices that a mask chooses; at most all of them."""
    x, mask = call.required(0), call.required(1)
    axis = call.op.attributes.get("axis")
    count = mask.shape[0] if mask.shape else 1
    if mask.data is not None:
        count = int(np.count_nonzero(mask.data))
    else:
        call.warn("Compress keeps as many elements as its data says; all of them are counted.")
    if not isinstance(axis, int):
        return call.emit(OpKind.GATHER, [x, mask], (min(count, numel(x.shape)),), x.dtype)
    axis = normalize_axis(axis, len(x.shape))
    shape = (*x.shape[:axis], min(count, x.shape[axis]), *x.shape[axis + 1 :])
    return call.emit(OpKind.GATHER, [x, mask], shape, x.dtype)
