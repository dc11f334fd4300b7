"""A linear layer whose result is reshaped before its bias is added, or whose input is flattened for it."""

from __future__ import annotations

from math import prod

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute, Node, TensorRole
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_reshaped_linear"]


def fuse_reshaped_linear(editor: GraphEditor) -> None:
    """Put a linear layer together again from the reshapes that a framework wraps it in.

    - ``reshape(x W) + b`` is ``reshape(x W + b)`` where the bias has one number for each output: the layer takes it in.
    - ``reshape(linear(reshape(x)))`` is ``linear(x)`` where the reshapes join and split the dimensions before the last.
    """
    for position, node in enumerate(editor.nodes):
        if node is not None and node.kind is OpKind.ADD and len(node.inputs) == 2 and "scalar" not in node.attributes:
            _take_bias(editor, position, node)
    for position, node in enumerate(editor.nodes):
        if node is not None and node.kind is OpKind.VIEW and node.attributes.get("function") == "reshape":
            _unwrap(editor, position, node)


def _take_bias(editor: GraphEditor, position: int, addition: Node) -> None:
    for reshaped, bias in (addition.inputs, addition.inputs[::-1]):
        view = editor.writer_of_kind(reshaped, OpKind.VIEW, "reshape")
        linear = None if view is None else editor.writer_of_kind(view.inputs[0], OpKind.LINEAR)
        if view is None or linear is None or len(linear.inputs) != 2 or not _is_bias(editor, bias, reshaped, linear):
            continue
        if editor.only_reader(reshaped) != position or editor.only_reader(linear.outputs[0]) != editor.writer(reshaped):
            continue
        if editor.only_reader(bias) != position or editor.writer(bias) > editor.writer(linear.outputs[0]):
            continue
        stored, product = editor.tensors[bias], linear.outputs[0]
        flat = editor.add_tensor(stored.name, editor.tensors[product].shape[-1:], stored.dtype, role=stored.role)
        place = editor.writer(product)
        if stored.role is not TensorRole.PARAMETER:
            editor.insert_before(place, _flatten(editor, view, bias, flat))
        biased = editor.make_node(
            OpKind.LINEAR, (*linear.inputs, flat), (product,), like=linear, attributes=linear.attributes
        )
        editor.replace(place, biased)
        editor.remove(editor.writer(reshaped))
        editor.replace(
            position,
            editor.make_node(OpKind.VIEW, (product,), addition.outputs, like=view, attributes=view.attributes),
        )
        return


def _flatten(editor: GraphEditor, like: Node, source: int, output: int) -> Node:
    attributes: dict[str, Attribute] = {"function": "reshape"}
    return editor.make_node(OpKind.VIEW, (source,), (output,), like=like, attributes=attributes)


def _is_bias(editor: GraphEditor, bias: int, reshaped: int, linear: Node) -> bool:
    """Whether a tensor is stored, or cast from one that is, with one number for each output of a linear layer."""
    cast = editor.writer_of_kind(bias, OpKind.CAST)
    if editor.tensors[bias if cast is None else cast.inputs[0]].role is not TensorRole.PARAMETER:
        return False
    shape, whole = editor.tensors[bias].shape, editor.tensors[reshaped].shape
    while shape and shape[0].at(1) == 1 and shape[0].per_sample == 0:
        shape = shape[1:]
    outputs = editor.tensors[linear.outputs[0]].shape[-1]
    is_whole = prod(dim.fixed for dim in shape) == outputs.fixed and all(dim.per_sample == 0 for dim in shape)
    return bool(shape) and is_whole and whole[-len(shape) :] == shape


def _unwrap(editor: GraphEditor, position: int, view: Node) -> None:
    linear = editor.writer_of_kind(view.inputs[0], OpKind.LINEAR)
    if linear is None or editor.only_reader(linear.outputs[0]) != position:
        return
    flattening = editor.writer_of_kind(linear.inputs[0], OpKind.VIEW, "reshape")
    if flattening is None:
        return
    x = flattening.inputs[0]
    before, after = editor.tensors[x].shape, editor.tensors[view.outputs[0]].shape
    features = editor.tensors[linear.inputs[0]].shape[-1], editor.tensors[linear.outputs[0]].shape[-1]
    if before[:-1] != after[:-1] or (before[-1], after[-1]) != features:
        return
    editor.remove(editor.writer(linear.outputs[0]))
    editor.replace(
        position,
        editor.make_node(
            OpKind.LINEAR, (x, *linear.inputs[1:]), view.outputs, like=linear, attributes=linear.attributes
        ),
    )
