"""Group normalization, which exporters write as an instance normalization of reshaped groups."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Node
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_group_norm"]


def fuse_group_norm(editor: GraphEditor) -> None:
    """Recognize reshape, instance normalization with constant weights, reshape back, scale and shift."""
    for position, node in enumerate(editor.nodes):
        if node is not None and node.kind is OpKind.INSTANCE_NORM:
            _fuse(editor, position, node)


def _fuse(editor: GraphEditor, position: int, norm: Node) -> None:
    before = editor.writer_of_kind(norm.inputs[0], OpKind.VIEW, "reshape")
    reader = editor.only_reader(norm.outputs[0])
    if before is None or reader < 0:
        return
    after = editor.node(reader)
    x = before.inputs[0]
    shape = editor.tensors[x].shape
    grouped = editor.tensors[norm.inputs[0]].shape
    if after.kind is not OpKind.VIEW or editor.tensors[after.outputs[0]].shape != shape:
        return
    if len(shape) < 2 or len(grouped) != 3 or grouped[0] != shape[0] or grouped[1].per_sample:
        return
    groups, channels = grouped[1].fixed, shape[1].fixed
    if groups < 1 or channels % groups:
        return
    last, output, inputs = reader, after.outputs[0], [x]
    for kind in (OpKind.MUL, OpKind.ADD):
        reader = editor.only_reader(output)
        node = editor.node(reader) if reader >= 0 else None
        if (
            node is not None
            and node.kind is kind
            and node.attributes.get("scalar") == (1.0 if kind is OpKind.MUL else 0.0)
        ):
            last, output = reader, node.outputs[0]  # a normalization that learns no scale or no shift
            continue
        if node is None or node.kind is not kind or len(node.inputs) != 2:
            break
        weight = _vector(editor, node.inputs[0] if node.inputs[1] == output else node.inputs[1], channels)
        if weight is None:
            break
        inputs.append(weight)
        last, output = reader, node.outputs[0]
    size = channels // groups
    for dim in shape[2:]:
        size *= dim.fixed
    like = editor.node(last)
    editor.remove(position)
    editor.replace(
        last,
        editor.make_node(
            OpKind.GROUP_NORM,
            inputs,
            like.outputs,
            like=like,
            source_op="group_norm",
            attributes={"groups": groups, "axes_size": size},
        ),
    )


def _vector(editor: GraphEditor, tensor: int, channels: int) -> int | None:
    """The stored tensor of one number for each channel behind a reshape, None where there is none."""
    while not editor.is_stored(tensor):
        view = editor.writer_of_kind(tensor, OpKind.VIEW, "reshape")
        if view is None:
            return None
        tensor = view.inputs[0]
    size = 1
    for dim in editor.tensors[tensor].shape:
        size *= dim.fixed
    return tensor if size == channels else None
