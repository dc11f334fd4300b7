"""The forward pass of a training step: the nodes of inference, and what they keep for the backward pass.

Eager PyTorch on CUDA keeps, beside tensors that the model has anyway:

=========================  ===============================================================================
operator                   what its forward pass writes in addition
=========================  ===============================================================================
batch norm                 mean and reciprocal deviation of every channel (fp32); its statistics are taken
                           over the batch
layer and group norm       mean and reciprocal deviation of every row (fp32)
RMS norm                   one number per row (fp32)
attention                  log-sum-exp of every query (fp32), of the flash and the memory-efficient kernel; a
                           mask of booleans as numbers; see also :mod:`~dippm.costs.training_step.attention_kernels`
max pooling                the index of every maximum (int64)
LSTM, GRU, RNN             the gates of all steps: an assumption on cuDNN's reserve
in-place activations       a copy of their input, where the gradient needs the input and not the result
=========================  ===============================================================================
"""

from __future__ import annotations

from collections.abc import Callable

from dippm.costs.training_step.dequantised_products import with_unpacked_weight
from dippm.costs.training_step.step_builder import StepBuilder, change_node
from dippm.graph import RECURRENT_KINDS, Dim, DType, Node, OpKind, Shape, fixed_shape

__all__ = ["append_forward_node"]

_GATES = {OpKind.LSTM: 4, OpKind.GRU: 3, OpKind.RNN: 1}
# Their in-place forms overwrite an input that their gradient needs.
_NEEDS_INPUT = frozenset({OpKind.SILU, OpKind.HARD_SWISH, OpKind.HARD_SIGMOID, OpKind.MISH, OpKind.GELU, OpKind.CLIP})


def append_forward_node(builder: StepBuilder, node: Node, *, is_kept: bool = True) -> Node:
    """Append a node of the forward pass with what it keeps for the backward pass.

    Args:
        builder: Where it goes.
        node: The node of inference.
        is_kept: Whether anything is to be kept: not in a block that is computed again.

    Returns:
        The node as it was appended, but that a product reads its weight as it is stored.
    """
    if is_kept and _overwrites_needed_input(builder, node):
        copy = builder.new_tensor(builder.shape(node.inputs[0]), builder.dtype(node.inputs[0]), name="saved")
        builder.run(OpKind.COPY, (node.inputs[0],), (copy,), function="clone")
        builder.saved_inputs[node.outputs[0]] = copy
    extra = _EXTRA_OUTPUTS.get(node.kind) if is_kept else None
    if node.kind is OpKind.BATCH_NORM:
        node = change_node(node, attributes={**node.attributes, "is_training": True})
    if extra is not None and len(node.outputs) == 1:
        kept = tuple(builder.new_tensor(shape, dtype, name="saved") for shape, dtype in extra(builder, node))
        node = change_node(node, outputs=(*node.outputs, *kept))
    builder.append(with_unpacked_weight(builder, node))
    return node


def _overwrites_needed_input(builder: StepBuilder, node: Node) -> bool:
    return (
        node.kind in _NEEDS_INPUT
        and node.inputs[0] >= 0
        and builder.base(node.inputs[0]) == builder.base(node.outputs[0])
    )


_Kept = list[tuple[Shape, DType]]


def _channel_statistics(builder: StepBuilder, node: Node) -> _Kept:
    shape = builder.shape(node.inputs[0])
    channels = shape[1] if len(shape) > 1 else shape[-1]
    return [((channels,), DType.FLOAT32)] * 2


def _row_statistics(count: int) -> Callable[[StepBuilder, Node], _Kept]:
    def of_rows(builder: StepBuilder, node: Node) -> _Kept:
        shape = builder.shape(node.inputs[0])
        width = node.attributes.get("axes_size", 0)
        kept, size = len(shape), 1
        while kept and not shape[kept - 1].per_sample and size < (width if isinstance(width, int) else 1):
            kept -= 1
            size *= shape[kept].fixed
        return [((*shape[:kept], *fixed_shape(*[1] * (len(shape) - kept))), DType.FLOAT32)] * count

    return of_rows


def _group_statistics(builder: StepBuilder, node: Node) -> _Kept:
    groups = node.attributes.get("groups", 1)
    shape = (builder.shape(node.inputs[0])[0], Dim(0, groups if isinstance(groups, int) else 1))
    return [(shape, DType.FLOAT32)] * 2


def _instance_statistics(builder: StepBuilder, node: Node) -> _Kept:
    return [(builder.shape(node.inputs[0])[:2], DType.FLOAT32)] * 2


def _of_attention(builder: StepBuilder, node: Node) -> _Kept:
    query, mask = node.inputs[0], node.inputs[3] if len(node.inputs) > 3 else -1
    kept = [(builder.shape(query)[:-1], DType.FLOAT32)]
    if mask >= 0 and builder.dtype(mask) is DType.BOOL:
        kept.append((builder.shape(mask), builder.dtype(query)))
    return kept


def _indices(builder: StepBuilder, node: Node) -> _Kept:
    return [(builder.shape(node.outputs[0]), DType.INT64)]


def _reserve(builder: StepBuilder, node: Node) -> _Kept:
    layers = node.attributes.get("num_layers", 1)
    gates = _GATES[node.kind] * (layers if isinstance(layers, int) else 1)
    return [((Dim(0, gates), *builder.shape(node.outputs[0])), builder.dtype(node.outputs[0]))]


_EXTRA_OUTPUTS: dict[OpKind, Callable[[StepBuilder, Node], _Kept]] = {
    OpKind.BATCH_NORM: _channel_statistics,
    OpKind.LAYER_NORM: _row_statistics(2),
    OpKind.RMS_NORM: _row_statistics(1),
    OpKind.GROUP_NORM: _group_statistics,
    OpKind.INSTANCE_NORM: _instance_statistics,
    OpKind.ATTENTION: _of_attention,
    OpKind.MAX_POOL: _indices,
    **dict.fromkeys(RECURRENT_KINDS, _reserve),
}
