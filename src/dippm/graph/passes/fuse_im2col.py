"""``unfold`` of images, which exporters write as a look-up of rows and one of columns, and one kernel copies."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_im2col"]

_ROWS, _COLUMNS = 2, 4
# From [batch, channels, kernel rows, rows, kernel columns, columns] to the kernel's elements side by side.
_ORDER = (0, 1, 2, 4, 3, 5)


def fuse_im2col(editor: GraphEditor) -> None:
    """Recognize windows that two look-ups take out of an image, with zeros round it or not, laid out as columns."""
    for position, node in enumerate(editor.nodes):
        if node is None or node.kind is not OpKind.VIEW or node.attributes.get("function") != "reshape":
            continue
        turned = editor.inner_writer(node.inputs[0], OpKind.VIEW)
        columns = None if turned is None else editor.inner_writer(turned.inputs[0], OpKind.GATHER)
        rows = None if columns is None else editor.inner_writer(columns.inputs[0], OpKind.GATHER)
        if turned is None or columns is None or rows is None or turned.attributes.get("perm") != _ORDER:
            continue
        if (rows.attributes.get("axis"), columns.attributes.get("axis")) != (_ROWS, _COLUMNS):
            continue
        batch, channels, *sizes = editor.tensors[turned.outputs[0]].shape
        wanted = (batch, channels.fixed * sizes[0].fixed * sizes[1].fixed, sizes[2].fixed * sizes[3].fixed)
        shape = editor.tensors[node.outputs[0]].shape
        if (*shape[:1], *(dim.fixed for dim in shape[1:])) != wanted:
            continue
        image = _without_zeros(editor, rows.inputs[0])
        copy = editor.make_node(
            OpKind.COPY, (image,), node.outputs, like=node, source_op="im2col", attributes={"function": "im2col"}
        )
        # What is before it loses its reader and goes with the unused nodes.
        editor.replace(position, copy)


def _without_zeros(editor: GraphEditor, image: int) -> int:
    """The image without the zeros round it, if it has any."""
    padded = editor.inner_writer(image, OpKind.PAD)
    is_border = padded is not None and padded.attributes.get("mode", "constant") == "constant"
    return padded.inputs[0] if padded is not None and is_border else image
