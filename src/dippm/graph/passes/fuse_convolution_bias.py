"""The bias of a convolution, which converters write as an addition of its own."""

from __future__ import annotations

from math import prod

from dippm.graph.dim import Dim
from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Node
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_convolution_bias"]

_CONVOLUTIONS = (OpKind.CONV, OpKind.CONV_TRANSPOSE)
_LEAST_RANK = 3  # a sample, channels, and one dimension that is gone over
_UNBIASED = 2


def fuse_convolution_bias(editor: GraphEditor) -> None:
    """Put an addition of one stored number per channel into the convolution before it, past a view between them."""
    for position, node in enumerate(editor.nodes):
        if node is None or node.kind is not OpKind.ADD or len(node.inputs) != 2:
            continue
        for product, addend in (node.inputs, node.inputs[::-1]):
            bias = _bias(editor, product, addend)
            if bias < 0 or editor.only_reader(product) != position:
                continue
            view = _unpadded(editor, product)
            result = product if view is None else view.inputs[0]
            writer = editor.writer(result)
            conv = editor.node(writer) if writer >= 0 else None
            if conv is None or conv.kind not in _CONVOLUTIONS or len(conv.inputs) != _UNBIASED:
                continue
            if view is not None and editor.writer(bias) > writer:
                continue
            inputs = (*conv.inputs, bias)
            if view is None:
                editor.remove(writer)
                fused = editor.make_node(conv.kind, inputs, node.outputs, like=conv, attributes=conv.attributes)
            else:
                biased = editor.make_node(conv.kind, inputs, conv.outputs, like=conv, attributes=conv.attributes)
                editor.replace(writer, biased)
                editor.remove(editor.writer(product))
                fused = editor.make_node(view.kind, view.inputs, node.outputs, like=view, attributes=view.attributes)
            editor.replace(position, fused)
            break


def _unpadded(editor: GraphEditor, tensor: int) -> Node | None:
    """The view that takes a dimension of 1 off a convolution's result, as converters write those of one dimension."""
    view = editor.writer_of_kind(tensor, OpKind.VIEW, "reshape")
    if view is None or editor.only_reader(view.inputs[0]) < 0:
        return None
    before, after = editor.tensors[view.inputs[0]].shape, editor.tensors[tensor].shape
    is_same = before[:2] == after[:2] and [size for size in before[2:] if size != Dim(0, 1)] == list(after[2:])
    return view if is_same else None


def _bias(editor: GraphEditor, product: int, addend: int) -> int:
    """The stored tensor behind an addend that varies along the channels alone; -1 where it is none."""
    result, shape = editor.tensors[product].shape, editor.tensors[addend].shape
    channel_axis = len(shape) - len(result) + 1
    if any(size.per_sample for size in shape) or len(result) < _LEAST_RANK or len(shape) > len(result):
        return -1
    if channel_axis < 0 or shape[channel_axis] != result[1]:
        return -1
    if prod(size.fixed for size in shape) != result[1].fixed:
        return -1
    while (view := editor.writer_of_kind(addend, OpKind.VIEW, "reshape")) is not None:
        addend = view.inputs[0]
    return addend if editor.is_stored_or_cast(addend) else -1
