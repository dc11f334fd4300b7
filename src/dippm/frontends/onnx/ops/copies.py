"""Operators that copy a tensor into another arrangement or size."""

from __future__ import annotations

import numpy as np

from dippm.frontends.onnx.ops.folding import fold
from dippm.frontends.onnx.ops.registry import rule
from dippm.frontends.onnx.values import Call, OpenSizeError, ShapeError, Value, normalize_axis, numel
from dippm.graph import DType, OpKind

__all__: list[str] = []

_REPEAT_LIMIT = 2**40


@rule("Tile")
def tile(call: Call) -> Value:
    """The tensor repeated along each dimension."""
    x = call.required(0)
    repeats = call.known_ints(1)
    if repeats is None:
        raise OpenSizeError("its repeats depend on values that are not known")
    if len(repeats) != len(x.shape) or any(not 0 <= count < _REPEAT_LIMIT for count in repeats):
        raise ShapeError("its repeats are negative, too many, or not one for each dimension")
    shape = tuple(size * count for size, count in zip(x.shape, repeats, strict=True))
    if shape == x.shape:
        return x
    if numel(shape) <= call.data_limit:
        known = fold(call, [x], lambda data: np.tile(data, repeats))
        if known is not None:
            return known
    return call.emit(OpKind.COPY, [x], shape, x.dtype, function="repeat")


@rule("DepthToSpace", "SpaceToDepth")
def depth_to_space(call: Call) -> Value:
    """Blocks of channels moved to space or back; PyTorch's pixel shuffle copies once."""
    x = call.required(0)
    block = call.int_attribute("blocksize", 1)
    if len(x.shape) != 4 or not 0 < block < 2**20:
        raise ShapeError("it needs an NCHW input and a positive block size")
    n, c, h, w = x.shape
    if call.op.op_type == "DepthToSpace":
        if c % (block * block):
            raise ShapeError(f"{c} channels do not split into blocks of {block}")
        shape = (n, c // (block * block), h * block, w * block)
    else:
        if h % block or w % block:
            raise ShapeError(f"{h} x {w} does not split into blocks of {block}")
        shape = (n, c * block * block, h // block, w // block)
    return call.emit(OpKind.COPY, [x], shape, x.dtype, function="pixel_shuffle")


@rule("Pad")
def pad(call: Call) -> Value:
    """A border round the tensor."""
    x = call.required(0)
    pads = call.known_ints(1)
    if pads is None:
        pads = call.ints_attribute("pads") or call.ints_attribute("paddings")
    if pads is None:
        raise OpenSizeError("its pads depend on values that are not known")
    axes = call.known_ints(3)
    axes = list(range(len(x.shape))) if axes is None else [normalize_axis(axis, len(x.shape)) for axis in axes]
    if len(pads) != 2 * len(axes):
        raise ShapeError(f"{len(pads)} pads do not fit {len(axes)} dimensions")
    sizes = list(x.shape)
    for position, axis in enumerate(axes):
        sizes[axis] += pads[position] + pads[position + len(axes)]
    if any(size < 0 for size in sizes):
        raise ShapeError(f"pads of {pads[:16]} leave nothing of {list(x.shape)}")
    shape = tuple(sizes)
    if x.is_constant and not any(pads):
        return x
    if all(amount <= 0 for amount in pads):
        # PyTorch copies even where there is nothing to add.
        return call.emit(OpKind.COPY, [x], shape, x.dtype, function="pad")
    return call.emit(OpKind.PAD, [x], shape, x.dtype, mode=call.text_attribute("mode", "constant"))


@rule("CenterCropPad")
def center_crop_pad(call: Call) -> Value:
    """Cropped or padded about the middle to a size."""
    x = call.required(0)
    wanted = call.known_ints(1)
    if wanted is None:
        raise OpenSizeError("its target shape depends on values that are not known")
    axes = call.ints_attribute("axes") or list(range(len(x.shape)))
    if len(axes) != len(wanted):
        raise ShapeError("its axes do not fit its target shape")
    sizes = list(x.shape)
    for axis, size in zip(axes, wanted, strict=True):
        sizes[normalize_axis(axis, len(sizes))] = size
    is_larger = any(size > old for size, old in zip(sizes, x.shape, strict=True))
    kind = OpKind.PAD if is_larger else OpKind.COPY
    return call.emit(kind, [x], tuple(sizes), x.dtype, function="center_crop_pad")


@rule("ReverseSequence")
def reverse_sequence(call: Call) -> Value:
    """Each sequence of the batch turned round."""
    x = call.required(0)
    return call.emit(OpKind.GATHER, [x, call.optional(1)], x.shape, x.dtype)


@rule("StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch")
def text(call: Call) -> list[Value]:
    """Text stays on the host and launches nothing."""
    x = call.required(0)
    call.warn("The model works on text; that part is left out.")
    dtype = DType.BOOL if call.op.op_type == "RegexFullMatch" else DType.STRING
    known = [Value(x.shape, dtype, name=x.name) for _ in call.op.outputs]
    for value in known:
        value.index = call.emit(OpKind.FILL, [], x.shape, dtype, function="text").index
    return known
