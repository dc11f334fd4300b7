"""One element of a dimension, which converters write as a slice and a squeeze."""

from __future__ import annotations

from dippm.graph.dim import changed_axis
from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute, Node
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_select"]


def fuse_select(editor: GraphEditor) -> None:
    """Let one view, ``x[:, i]``, do what a slice of one element and the dropping of its dimension do.

    Where the slice is taken from a transposition that the rest of the dimensions does not notice, it is taken from
    what was transposed.
    """
    for position, node in enumerate(editor.nodes):
        if node is None or node.kind is not OpKind.VIEW or node.attributes.get("function") != "reshape":
            continue
        piece = editor.writer_of_kind(node.inputs[0], OpKind.VIEW, "slice")
        axis = None if piece is None else _selected_axis(editor, piece, node)
        if piece is None or axis is None or editor.only_reader(node.inputs[0]) != position:
            continue
        source = piece.inputs[0]
        turned = editor.writer_of_kind(source, OpKind.VIEW, "transpose")
        perm = None if turned is None else turned.attributes.get("perm")
        if (
            turned is not None
            and isinstance(perm, tuple)
            and list(perm[:axis] + perm[axis + 1 :]) == sorted(perm[:axis] + perm[axis + 1 :])
        ):
            source, axis = turned.inputs[0], perm[axis]
        attributes: dict[str, Attribute] = {"function": "select", "axis": axis}
        select = editor.make_node(
            OpKind.VIEW, (source,), node.outputs, like=node, source_op="select", attributes=attributes
        )
        editor.replace(position, select)


def _selected_axis(editor: GraphEditor, piece: Node, squeeze: Node) -> int | None:
    """The dimension of which a slice takes one element, and which is gone afterwards."""
    whole, cut, left = (
        editor.tensors[index].shape for index in (piece.inputs[0], piece.outputs[0], squeeze.outputs[0])
    )
    axis = changed_axis(whole, cut)
    if axis is None or cut[axis] != (0, 1) or left != (*cut[:axis], *cut[axis + 1 :]):
        return None
    return axis
