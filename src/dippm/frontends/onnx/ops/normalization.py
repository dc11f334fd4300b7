"""Normalizations."""

from __future__ import annotations

from dippm.frontends.onnx.ops.registry import MICROSOFT, rule
from dippm.frontends.onnx.values import Call, ShapeError, Value, broadcast, normalize_axis, numel
from dippm.graph import DType, OpKind

__all__: list[str] = []


@rule("BatchNormalization")
def batch_norm(call: Call) -> list[Value]:
    """Each channel by stored statistics, or by the batch's own where the file was exported for training."""
    x = call.required(0)
    if len(x.shape) < 2:
        raise ShapeError("it needs at least two dimensions")
    channels = x.shape[1]
    weights = [call.required(position) for position in range(1, 5)]
    if any(weight.shape != (channels,) for weight in weights):
        raise ShapeError(f"its weights do not have {channels} channels")
    # Since opset 14 an attribute says so; before, the outputs that only training has.
    is_training = bool(call.int_attribute("training_mode")) or (call.op.version < 14 and len(call.op.outputs) > 1)
    attributes = {"is_training": True} if call.is_training and is_training else {}
    result = call.emit(OpKind.BATCH_NORM, [x, *weights], x.shape, x.dtype, **attributes)
    # Training outputs: the new running statistics, and in old opsets the batch's own.
    return [result, weights[2], weights[3], weights[2], weights[3]]


@rule("InstanceNormalization")
def instance_norm(call: Call) -> Value:
    """Each channel of each sample by its own statistics."""
    x = call.required(0)
    if len(x.shape) < 3:
        raise ShapeError("it needs at least three dimensions")
    inputs = [x, call.required(1), call.required(2)]
    return call.emit(OpKind.INSTANCE_NORM, inputs, x.shape, x.dtype, axes_size=numel(x.shape[2:]))


@rule("LayerNormalization", "RMSNormalization")
@rule("SimplifiedLayerNormalization")
def layer_norm(call: Call) -> list[Value]:
    """The last dimensions of each sample by their own statistics."""
    x = call.required(0)
    axis = normalize_axis(call.int_attribute("axis", -1), len(x.shape))
    kind = OpKind.LAYER_NORM if call.op.op_type == "LayerNormalization" else OpKind.RMS_NORM
    inputs = [x, call.optional(1), call.optional(2)]
    statistics = (*x.shape[:axis], *(1 for _ in x.shape[axis:]))
    outputs = [(x.shape, x.dtype)]
    outputs.extend((statistics, DType.FLOAT32) for _ in call.op.outputs[1:])
    return call.emit_many(kind, inputs, outputs, attributes={"axes_size": numel(x.shape[axis:])})


@rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(call: Call) -> list[Value]:
    """An addition, then a layer normalization."""
    x, skip = call.required(0), call.required(1)
    is_simple = call.op.op_type == "SkipSimplifiedLayerNormalization"
    bias = call.optional(3 if is_simple else 4)
    if bias is not None:
        # onnxruntime takes it from the product that it makes the second addend, which may take it back.
        skip = call.emit(OpKind.ADD, [skip, bias], skip.shape, x.dtype)
    total = call.emit(OpKind.ADD, [x, skip], broadcast(x.shape, skip.shape), x.dtype)
    scale, shift = call.optional(2), None if is_simple else call.optional(3)
    kind = OpKind.RMS_NORM if is_simple else OpKind.LAYER_NORM
    axes_size = total.shape[-1] if total.shape else 1
    result = call.emit(kind, [total, scale, shift], total.shape, x.dtype, axes_size=axes_size)
    return [result, result, result, total]


@rule("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_norm(call: Call) -> list[Value]:
    """BERT's embeddings: words, positions and segments added up and normalized."""
    ids, words = call.required(0), call.required(2)
    if len(words.shape) != 2:
        raise ShapeError("its word table must have two dimensions")
    shape = (*ids.shape, words.shape[1])
    total = call.emit(OpKind.EMBEDDING, [words, ids], shape, words.dtype)
    for table, indices in ((call.optional(3), None), (call.optional(4), call.optional(1))):
        if table is not None:
            looked_up = call.emit(OpKind.EMBEDDING, [table, indices or ids], shape, words.dtype)
            total = call.emit(OpKind.ADD, [total, looked_up], shape, words.dtype)
    inputs = [total, call.optional(5), call.optional(6)]
    result = call.emit(OpKind.LAYER_NORM, inputs, shape, words.dtype, axes_size=shape[-1])
    mask = call.emit(OpKind.FILL, [], ids.shape[:1], DType.INT32, function="mask")
    return [result, mask, total]


@rule("GroupNormalization")
@rule("GroupNorm", "SkipGroupNorm", domain=MICROSOFT)
def group_norm(call: Call) -> list[Value]:
    """Groups of channels of each sample by their own statistics."""
    x = call.required(0)
    if len(x.shape) < 2:
        raise ShapeError("it needs at least two dimensions")
    groups = call.int_attribute("num_groups", call.int_attribute("groups", 1))
    if groups < 1:
        raise ShapeError("its number of groups is not positive")
    inputs = [x, call.required(1), call.required(2)]
    axes_size = numel(x.shape[1:]) // groups
    if call.op.op_type == "SkipGroupNorm":
        x = call.add(x, call.required(3))
        x = call.add(x, call.optional(4))
        inputs[0] = x
    result = call.emit(OpKind.GROUP_NORM, inputs, x.shape, x.dtype, groups=groups, axes_size=axes_size)
    if call.op.domain == MICROSOFT and call.int_attribute("activation"):
        result = call.emit(OpKind.SILU, [result], x.shape, x.dtype)
    return [result, x]


@rule("LRN")
def local_response_norm(call: Call) -> Value:
    """Each element by its neighbours in other channels."""
    x = call.required(0)
    return call.emit(OpKind.LOCAL_RESPONSE_NORM, [x], x.shape, x.dtype, axes_size=call.int_attribute("size", 1))


@rule("LpNormalization")
def lp_normalization(call: Call) -> Value:
    """A tensor divided by its norm, as torch.nn.functional.normalize does it."""
    x = call.required(0)
    axis = normalize_axis(call.int_attribute("axis", -1), len(x.shape))
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    norm = call.emit(OpKind.REDUCE, [x], shape, x.dtype, function="norm", axes=(axis,))
    norm = call.emit(OpKind.CLIP, [norm], shape, x.dtype)
    return call.emit(OpKind.DIV, [x, norm], x.shape, x.dtype)


@rule("MeanVarianceNormalization")
def mean_variance_normalization(call: Call) -> Value:
    """A tensor less its mean, divided by its deviation."""
    x = call.required(0)
    wanted = call.ints_attribute("axes") or [axis for axis in (0, 2, 3) if axis < len(x.shape)]
    axes = tuple(sorted(normalize_axis(axis, len(x.shape)) for axis in wanted))
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
    mean = call.emit(OpKind.REDUCE, [x], shape, x.dtype, function="mean", axes=axes)
    centred = call.emit(OpKind.SUB, [x, mean], x.shape, x.dtype)
    deviation = call.emit(OpKind.REDUCE, [x], shape, x.dtype, function="std", axes=axes)
    return call.emit(OpKind.DIV, [centred, deviation], x.shape, x.dtype)
