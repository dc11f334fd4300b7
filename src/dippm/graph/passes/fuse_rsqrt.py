"""``rsqrt``, for which ONNX has no operator, put together again from a square root and what divides by it."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_rsqrt"]


def fuse_rsqrt(editor: GraphEditor) -> None:
    """Recognize ``1 / sqrt(x)`` whose root nothing else reads."""
    for position, node in enumerate(editor.nodes):
        if node is None or len(node.inputs) != 1:
            continue
        is_one_by = node.kind is OpKind.DIV and node.attributes.get("scalar_first") is True
        is_reciprocal = node.kind is OpKind.UNARY and node.attributes.get("function") == "reciprocal"
        if not is_reciprocal and not (is_one_by and node.attributes.get("scalar") == 1.0):
            continue
        root = editor.writer_of_kind(node.inputs[0], OpKind.UNARY, "sqrt")
        if root is None or editor.only_reader(node.inputs[0]) < 0:
            continue
        # The root loses its reader and goes with the unused nodes.
        rsqrt = editor.make_node(
            OpKind.UNARY, root.inputs, node.outputs, like=node, source_op="rsqrt", attributes={"function": "rsqrt"}
        )
        editor.replace(position, rsqrt)
