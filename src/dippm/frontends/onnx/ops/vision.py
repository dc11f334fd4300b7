"""Operators on images: resizing, sampling, regions."""

from __future__ import annotations

from math import floor, isfinite

from dippm.frontends.onnx.ops.registry import rule
from dippm.frontends.onnx.values import Call, ShapeError, Value, normalize_axis, numel
from dippm.graph import DType, OpKind

__all__: list[str] = []


@rule("Resize", "Upsample")
def resize(call: Call) -> Value:
    """Another size, by scale or by target."""
    x = call.required(0)
    rank = len(x.shape)
    is_old = call.op.op_type == "Upsample" or call.op.version < 11
    scales = call.optional(1) if is_old else call.optional(2)
    sizes = None if is_old else call.known_ints(3)
    wanted_axes = call.ints_attribute("axes")
    axes = list(range(rank)) if wanted_axes is None else [normalize_axis(axis, rank) for axis in wanted_axes]
    factors = call.floats_attribute("scales")
    if scales is not None and scales.data is not None and scales.data.size:
        factors = [float(item) for item in scales.data.reshape(-1).tolist()]
    shape = list(x.shape)
    if sizes:
        if len(sizes) != len(axes):
            raise ShapeError(f"{len(sizes)} sizes do not fit {len(axes)} dimensions")
        native = call.native_shape(0)
        for axis, size in zip(axes, sizes, strict=True):
            is_kept = native is not None and size == native[axis]
            shape[axis] = x.shape[axis] if is_kept else size
        policy = call.text_attribute("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            choose = min if policy == "not_larger" else max
            scale = choose(shape[axis] / max(x.shape[axis], 1) for axis in axes)
            for axis in axes:
                shape[axis] = round(scale * x.shape[axis])
    elif factors:
        if len(factors) != len(axes) or not all(isfinite(factor) and factor > 0 for factor in factors):
            raise ShapeError(f"{len(factors)} scales do not fit {len(axes)} dimensions or are not positive")
        for axis, factor in zip(axes, factors, strict=True):
            shape[axis] = floor(x.shape[axis] * factor + 1e-6)
    else:
        raise ShapeError("neither its scales nor its sizes are known")
    if tuple(shape) == x.shape:
        return x
    return call.emit(OpKind.RESIZE, [x], tuple(shape), x.dtype, mode=call.text_attribute("mode", "nearest"))


@rule("GridSample")
def grid_sample(call: Call) -> Value:
    """The input at given points."""
    x, grid = call.required(0), call.required(1)
    if len(x.shape) < 3 or len(grid.shape) != len(x.shape):
        raise ShapeError("its input and grid must have the same rank, at least 3")
    shape = (*x.shape[:2], *grid.shape[1:-1])
    return call.emit(OpKind.GRID_SAMPLE, [x, grid], shape, x.dtype, mode=call.text_attribute("mode", "linear"))


@rule("AffineGrid")
def affine_grid(call: Call) -> Value:
    """The points of an affine map."""
    theta = call.required(0)
    sizes = call.known_ints(1)
    if sizes is None or len(sizes) < 3 or any(size < 0 for size in sizes):
        raise ShapeError("its size is not known")
    shape = (sizes[0], *sizes[2:], len(sizes) - 2)
    return call.emit(OpKind.GRID_SAMPLE, [theta], shape, theta.dtype, mode="affine_grid")


@rule("RoiAlign")
def roi_align(call: Call) -> Value:
    """Each region sampled on a grid."""
    x, regions = call.required(0), call.required(1)
    if len(x.shape) != 4 or not regions.shape:
        raise ShapeError("it needs an NCHW input and a list of regions")
    height, width = call.int_attribute("output_height", 1), call.int_attribute("output_width", 1)
    shape = (regions.shape[0], x.shape[1], height, width)
    return call.emit(OpKind.GRID_SAMPLE, [x, regions, call.optional(2)], shape, x.dtype, mode="roi_align")


@rule("NonMaxSuppression")
def non_max_suppression(call: Call) -> Value:
    """Boxes that do not overlap; at most as many as the caller lets through."""
    boxes, scores = call.required(0), call.required(1)
    if len(boxes.shape) != 3 or len(scores.shape) != 3:
        raise ShapeError("its boxes and scores must have three dimensions")
    limit = boxes.shape[1]
    wanted = call.known_ints(2)
    if wanted:
        limit = min(max(wanted[0], 0), limit)
    call.warn("NonMaxSuppression keeps as many boxes as its data says; the most it may keep are counted.")
    shape = (scores.shape[0] * scores.shape[1] * limit, 3)
    return call.emit(OpKind.SORT, [boxes, scores], shape, DType.INT64, function="nms")


@rule("Col2Im")
def col2im(call: Call) -> Value:
    """Columns of windows added up to an image."""
    x = call.required(0)
    image, block = call.known_ints(1), call.known_ints(2)
    if image is None or block is None or len(x.shape) != 3 or numel(block) <= 0 or x.shape[1] % numel(block):
        raise ShapeError("its image and block shapes are not known or do not fit")
    shape = (x.shape[0], x.shape[1] // numel(block), *image)
    return call.emit(OpKind.SCATTER, [x], shape, x.dtype, function="col2im")


@rule("ImageDecoder")
def image_decoder(call: Call) -> Value:
    """An image from its file's bytes: of unknown size."""
    raise ShapeError(f"the size of the image that '{call.op.op_type}' reads is only known at run time")
