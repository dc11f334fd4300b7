"""A linear layer takes its bias in: one kernel computes ``x W + b``."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_linear"]


def fuse_linear(editor: GraphEditor) -> None:
    """Put an addition of a stored vector into the linear layer or convolution before it."""
    for position, node in enumerate(editor.nodes):
        if node is None or node.kind is not OpKind.ADD or len(node.inputs) != 2 or "scalar" in node.attributes:
            continue
        for product, bias in (node.inputs, node.inputs[::-1]):
            linear = editor.writer_of_kind(product, OpKind.LINEAR)
            if linear is None or len(linear.inputs) != 2 or editor.only_reader(product) != position:
                continue
            if not editor.is_stored_or_cast(bias) or editor.tensors[bias].shape != editor.tensors[product].shape[-1:]:
                continue
            editor.remove(editor.writer(product))
            editor.replace(
                position,
                editor.make_node(
                    OpKind.LINEAR,
                    (*linear.inputs, bias),
                    node.outputs,
                    like=linear,
                    attributes=linear.attributes,
                ),
            )
            break
