"""Operators that rearrange a tensor without computing: views where PyTorch has views, copies where it copies."""

from __future__ import annotations

import numpy as np

from dippm.frontends.onnx.ops.folding import fold
from dippm.frontends.onnx.ops.registry import rule
from dippm.frontends.onnx.values import (
    DATA_LIMIT,
    Call,
    OpenSizeError,
    ShapeError,
    Value,
    broadcast,
    normalize_axis,
    numel,
)
from dippm.graph import DType, OpKind

__all__ = ["turn"]


@rule("Identity", "Optional", "OptionalGetElement")
def identity(call: Call) -> Value:
    """The input itself."""
    return call.required(0)


@rule("Dropout")
def dropout(call: Call) -> list[Value]:
    """The input itself at inference, where PyTorch launches nothing; in training a result and its mask.

    Whether the file asks for training (``training_mode``, from opset 12 on) does not matter: a framework that trains
    the model turns its dropout on.
    """
    x = call.required(0)
    given = call.optional(1)
    share = call.float_attribute("ratio", 0.5) if given is None or given.data is None else given.number()
    if not call.is_training or share == 0:
        return [x, x]
    return call.emit_many(OpKind.DROPOUT, [x], [(x.shape, x.dtype), (x.shape, DType.BOOL)])


@rule("Shape")
def shape_of(call: Call) -> Value:
    """The sizes as numbers, which PyTorch code holds on the host."""
    x = call.required(0)
    start, end = call.int_attribute("start"), call.int_attribute("end", len(x.shape))
    return call.constant(np.array(x.shape[slice(start, end)], dtype=np.int64), [x])


@rule("Size")
def size_of(call: Call) -> Value:
    """The number of elements."""
    x = call.required(0)
    return call.constant(np.array(min(numel(x.shape), 2**62), dtype=np.int64), [x])


@rule("Reshape")
def reshape(call: Call) -> Value:
    """The same elements under other sizes."""
    x = call.required(0)
    target = call.known_ints(1)
    if target is None:
        target = call.ints_attribute("shape")
    if target is None:
        raise OpenSizeError("its target shape depends on values that are not known")
    wanted = call.required(1) if len(call.inputs) > 1 else None
    rebatching = call.evaluator.rebatching
    native, native_output = call.native_shape(0), call.native_output_shape()
    is_baked = wanted is None or not wanted.is_computed or wanted.is_static
    if rebatching is not None and native is not None and native_output is not None and native != x.shape:
        try:
            plain = _resolve(x.shape, target, is_zero_kept=bool(call.int_attribute("allowzero")))
        except ShapeError:
            plain = None
        if plain is None or is_baked:
            grown = rebatching.reshape(native, x.shape, native_output)
            if grown is not None:
                return _reshaped(call, x, grown)
        if plain is not None:
            return _reshaped(call, x, plain)
    return _reshaped(call, x, _resolve(x.shape, target, is_zero_kept=bool(call.int_attribute("allowzero"))))


def _resolve(shape: tuple[int, ...], target: list[int], *, is_zero_kept: bool) -> tuple[int, ...]:
    sizes = []
    for axis, size in enumerate(target):
        if size == 0 and not is_zero_kept:
            if axis >= len(shape):
                raise ShapeError(f"its target {target[:16]} keeps a dimension that the input does not have")
            sizes.append(shape[axis])
        elif size < -1:
            raise ShapeError(f"its target {target[:16]} has a negative size")
        else:
            sizes.append(size)
    total = numel(shape)
    if sizes.count(-1) > 1:
        raise ShapeError(f"its target {target[:16]} leaves more than one dimension open")
    if -1 in sizes:
        known = -numel(sizes)
        if known == 0 or total % known:
            raise ShapeError(f"{total} elements do not fill a target of {target[:16]}")
        sizes[sizes.index(-1)] = total // known
    elif numel(sizes) != total:
        raise ShapeError(f"{total} elements do not fill a target of {target[:16]}")
    return tuple(sizes)


def _reshaped(call: Call, x: Value, shape: tuple[int, ...]) -> Value:
    known = fold(call, [x], lambda data: data.reshape(shape))
    return known or call.view(x, shape, "reshape")


@rule("Flatten")
def flatten(call: Call) -> Value:
    """Two dimensions: those before an axis and those from it on."""
    x = call.required(0)
    axis = call.int_attribute("axis", 1)
    if not -len(x.shape) <= axis <= len(x.shape):
        raise ShapeError(f"axis {axis} does not exist in {len(x.shape)} dimensions")
    axis = axis + len(x.shape) if axis < 0 else axis
    return _reshaped(call, x, (numel(x.shape[:axis]), numel(x.shape[axis:])))


def _axes(call: Call, rank: int) -> list[int] | None:
    axes = call.known_ints(1)
    if axes is None:
        axes = call.ints_attribute("axes")
    if axes is None and call.optional(1) is not None:
        raise OpenSizeError("its axes depend on values that are not known")
    return None if axes is None else [normalize_axis(axis, rank) for axis in axes]


@rule("Squeeze")
def squeeze(call: Call) -> Value:
    """Dimensions of size 1 taken out."""
    x = call.required(0)
    axes = _axes(call, len(x.shape))
    if axes is None:
        native = call.native_shape(0) or x.shape
        axes = [axis for axis, size in enumerate(native) if size == 1 and x.shape[axis] == 1]
    if any(x.shape[axis] != 1 for axis in axes):
        raise ShapeError(f"dimensions {axes[:8]} are not all of size 1")
    return _reshaped(call, x, tuple(size for axis, size in enumerate(x.shape) if axis not in set(axes)))


@rule("Unsqueeze")
def unsqueeze(call: Call) -> Value:
    """Dimensions of size 1 put in."""
    x = call.required(0)
    count = len(call.known_ints(1) or call.ints_attribute("axes") or [])
    axes = set(_axes(call, len(x.shape) + count) or [])
    if len(axes) != count:
        raise ShapeError("its axes repeat or are not known")
    rest = iter(x.shape)
    return _reshaped(call, x, tuple(1 if axis in axes else next(rest) for axis in range(len(x.shape) + count)))


@rule("Transpose")
def transpose(call: Call) -> Value:
    """Dimensions in another order."""
    x = call.required(0)
    perm = call.ints_attribute("perm") or list(reversed(range(len(x.shape))))
    if sorted(perm) != list(range(len(x.shape))):
        raise ShapeError(f"{perm[:16]} is no order of {len(x.shape)} dimensions")
    return turn(call, x, tuple(perm))


def turn(call: Call, x: Value, perm: tuple[int, ...]) -> Value:
    """Dimensions in another order; a turned weight remembers which one it is."""
    known = fold(call, [x], lambda data: data.transpose(perm))
    if known is not None:
        return known
    if perm == tuple(range(len(perm))):
        return x
    result = call.view(x, tuple(x.shape[axis] for axis in perm), "transpose", perm=perm)
    if x.is_static and len(perm) == 2:
        result.base = x.base or x
    return result


@rule("Expand")
def expand(call: Call) -> Value:
    """Dimensions of size 1 repeated without a copy."""
    x = call.required(0)
    target = call.known_ints(1)
    if target is None and call.required(1).count:
        target = [call.required(1).count]  # a number written wherever a mask is true
    if target is None:
        raise OpenSizeError("its target shape depends on values that are not known")
    if any(size < 0 for size in target):
        raise ShapeError(f"its target {target[:16]} has a negative size")
    try:
        shape = broadcast(x.shape, tuple(target))
    except ShapeError:
        rebatching, native, native_output = call.evaluator.rebatching, call.native_shape(0), call.native_output_shape()
        if rebatching is None or native is None or native_output is None:
            raise
        shape = rebatching.scale_like(native, x.shape, native_output)
    if numel(shape) <= call.data_limit:
        known = fold(call, [x], lambda data: np.broadcast_to(data, shape))
        if known is not None:
            known.is_computed = True
            known.is_static = known.is_static and call.required(1).is_static
            return known
    if x.is_number and x.role is not x.role.ACTIVATION:
        return call.emit(OpKind.FILL, [], shape, x.dtype, function="full")
    return call.view(x, shape, "expand")


@rule("Concat")
def concat(call: Call) -> Value:
    """Tensors one after another along an axis."""
    parts = [call.required(position) for position in range(len(call.inputs))]
    if not parts:
        raise ShapeError("it has no inputs")
    rank = len(parts[0].shape)
    axis = normalize_axis(call.int_attribute("axis", 1 if rank > 1 else 0), rank)
    if any(len(part.shape) != rank for part in parts):
        raise ShapeError("its inputs differ in their number of dimensions")
    first = next((part for part in parts if not part.is_static), parts[0]).shape
    native = call.native_output_shape()
    for part in parts:
        for other in range(rank):
            if other == axis or part.shape[other] == first[other]:
                continue
            # A stored tensor that holds the file's batch would have been expanded to the batch asked for.
            if not part.is_static or native is None or part.shape[other] != native[other]:
                raise ShapeError(f"dimension {other} is {part.shape[other]} in one input and {first[other]} in another")
    total = sum(part.shape[axis] for part in parts)
    shape = (*first[:axis], total, *first[axis + 1 :])
    if all(part.is_constant for part in parts) and numel(shape) <= call.data_limit:
        arrays = [part.data for part in parts if part.data is not None]
        if all(array.ndim == rank and array.shape[:axis] == shape[:axis] for array in arrays):
            known = np.concatenate(arrays, axis=axis)
            if known.shape == shape:
                return call.constant(known, parts)
    return call.emit(OpKind.CONCAT, parts, shape, parts[0].dtype, axis=axis)


@rule("Split", "SplitToSequence")
def split(call: Call) -> list[Value]:
    """Pieces of a tensor along an axis."""
    x = call.required(0)
    is_sequence = call.op.op_type == "SplitToSequence"
    axis = normalize_axis(call.int_attribute("axis"), len(x.shape))
    size = x.shape[axis]
    sizes = call.known_ints(1)
    if sizes is None:
        if call.optional(1) is not None:
            raise OpenSizeError("its sizes depend on values that are not known")
        sizes = call.ints_attribute("split")
    if is_sequence and (sizes is None or (call.required(1).shape == () and len(sizes) == 1)):
        step = sizes[0] if sizes else 1
        if step < 1 or size // step > 10_000:
            raise ShapeError(f"pieces of {step} out of {size} are too many")
        sizes = [min(step, size - start) for start in range(0, size, step)]
    if sizes is None:
        count = call.int_attribute("num_outputs", len(call.op.outputs))
        if not 0 < count <= 100_000:
            raise ShapeError(f"it asks for {count} pieces")
        step = -(-size // count)
        sizes = [min(step, max(size - i * step, 0)) for i in range(count)]
    native = call.native_shape(0)
    if sum(sizes) != size and native is not None and sum(sizes) == native[axis] and size % native[axis] == 0:
        sizes = [piece * (size // native[axis]) for piece in sizes]
    if sum(sizes) != size or any(piece < 0 for piece in sizes):
        raise ShapeError(f"pieces of {sizes[:16]} do not make up {size}")
    pieces = _pieces(call, x, axis, sizes)
    if is_sequence and not call.int_attribute("keepdims", 1) and all(piece == 1 for piece in sizes):
        pieces = [_reshaped(call, p, (*p.shape[:axis], *p.shape[axis + 1 :])) for p in pieces]
    return [Value((len(pieces),), x.dtype, items=pieces)] if is_sequence else pieces


def _pieces(call: Call, x: Value, axis: int, sizes: list[int]) -> list[Value]:
    """Pieces along an axis, all of them views made by one operator."""
    shapes = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
    if not x.is_constant:
        outputs = [(shape, x.dtype) for shape in shapes]
        return call.emit_many(OpKind.VIEW, [x], outputs, attributes={"function": "split", "axis": axis})
    borders = np.cumsum(sizes)[:-1].tolist()
    return [call.constant(piece, [x]) for piece in np.split(np.asarray(x.data), borders, axis=axis)]


@rule("Slice")
def slice_tensor(call: Call) -> Value:
    """Part of a tensor along some axes."""
    x = call.required(0)
    rank = len(x.shape)
    starts = call.ints_attribute("starts") if len(call.inputs) == 1 else call.known_ints(1)
    ends = call.ints_attribute("ends") if len(call.inputs) == 1 else call.known_ints(2)
    axes = call.ints_attribute("axes") if len(call.inputs) == 1 else call.known_ints(3)
    steps = call.known_ints(4)
    if starts is None or ends is None or (axes is None and call.optional(3) is not None):
        call.warn("A slice depends on values that are only known at run time; it is counted at its input's full size.")
        return x
    axes = list(range(len(starts))) if axes is None else [normalize_axis(axis, rank) for axis in axes]
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or len(set(axes)) != len(axes) or 0 in steps:
        raise ShapeError("its starts, ends, axes and steps do not go together")
    native = call.native_shape(0)
    border = call.optional(2) if len(call.inputs) > 2 else None
    is_baked = border is None or not border.is_computed or border.is_static
    slices = [slice(None)] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if axis >= rank:
            raise ShapeError(f"axis {axis} does not exist in {rank} dimensions")
        is_whole = is_baked and step == 1 and start == 0
        # The whole of the file's batch becomes the whole of the batch asked for. An end beyond it was no batch when
        # the file was written: it is a number of the model's own code and holds at every batch.
        if native is not None and is_whole and native[axis] != x.shape[axis] and end == native[axis]:
            continue
        call.note_slice(axis, x.shape[axis], start, end)
        # numpy reads a negative end as counted from the back; one below that means up to the very first element.
        stop = None if step < 0 and end < -x.shape[axis] else end
        slices[axis] = slice(start, stop, step)
    ranges = [range(size)[piece] for size, piece in zip(x.shape, slices, strict=True)]
    shape = tuple(len(piece) for piece in ranges)
    known = fold(call, [x], lambda data: data[tuple(slices)])
    if known is not None:
        return known
    if any(step < 0 for step in steps):
        return call.emit(OpKind.COPY, [x], shape, x.dtype, function="flip")
    step_sizes = tuple(piece.step for piece in ranges)
    return call.view(x, shape, "slice", steps=step_sizes)


@rule("Trilu")
def trilu(call: Call) -> Value:
    """One triangle of each matrix, the rest zero."""
    x = call.required(0)
    k = call.optional(1)
    offset = k.integer() if k is not None and k.is_number else 0
    if len(x.shape) < 2:
        raise ShapeError("it needs at least two dimensions")
    function = np.triu if call.int_attribute("upper", 1) else np.tril
    known = fold(call, [x], lambda data: function(data, max(min(offset, DATA_LIMIT), -DATA_LIMIT)))
    return known or call.emit(OpKind.UNARY, [x], x.shape, x.dtype, function="trilu")
