"""Queries, keys and values that one linear layer makes stand in one copy, as PyTorch's layer for attention has them."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute, Node
from dippm.graph.op_kind import OpKind

__all__ = ["copy_packed_projection"]

_PARTS_FIRST = (3, 1, 2, 0, 4)
_PARTS = (2, 3)
_PART_AXIS = 2


def copy_packed_projection(editor: GraphEditor) -> None:
    """Put back the copy that ``nn.MultiheadAttention`` makes of ``[length, batch, 3, size]`` with the 3 in front.

    It writes ``unflatten``, ``unsqueeze(0)``, ``transpose(0, -2)``, ``squeeze(-2)``, ``contiguous``, and then selects.
    Exporters leave ``contiguous`` out, which costs nothing in a file; each part would then be copied on its own.
    """
    for position, node in enumerate(editor.nodes):
        if node is not None and node.kind is OpKind.VIEW and node.attributes.get("perm") == _PARTS_FIRST:
            _copy(editor, position, node)


def _copy(editor: GraphEditor, position: int, turned: Node) -> None:
    unsqueezed = editor.writer_of_kind(turned.inputs[0], OpKind.VIEW, "reshape")
    reader = editor.only_reader(turned.outputs[0])
    if unsqueezed is None or reader < 0 or editor.only_reader(turned.inputs[0]) != position:
        return
    squeezed = editor.node(reader)
    if squeezed.kind is not OpKind.VIEW or squeezed.attributes.get("function") != "reshape":
        return
    before = editor.tensors[unsqueezed.inputs[0]].shape
    after = editor.tensors[squeezed.outputs[0]].shape
    if len(before) != len(_PARTS_FIRST) - 1 or before[_PART_AXIS].fixed not in _PARTS:
        return
    length, batch, parts, size = before
    if editor.tensors[turned.outputs[0]].shape[0] != parts or after != (parts, length, batch, size):
        return
    if not all(_is_part(editor, index) for index in editor.readers(squeezed.outputs[0])):
        return
    source = squeezed.outputs[0]
    spec = editor.tensors[source]
    view = editor.add_tensor(spec.name, spec.shape, spec.dtype)
    editor.insert_before(
        reader,
        editor.make_node(OpKind.VIEW, squeezed.inputs, (view,), like=squeezed, attributes=squeezed.attributes),
    )
    attributes: dict[str, Attribute] = {"function": "clone"}
    copy = editor.make_node(
        OpKind.COPY, (view,), squeezed.outputs, like=squeezed, source_op="contiguous", attributes=attributes
    )
    editor.replace(reader, copy)


def _is_part(editor: GraphEditor, reader: int) -> bool:
    node = editor.node(reader) if reader >= 0 else None
    if node is None or node.kind is not OpKind.VIEW:
        return False
    return node.attributes.get("function") in ("select", "unbind") and node.attributes.get("axis") == 0
