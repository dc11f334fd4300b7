"""A bias of zeros, which exporters give to convolutions that have none."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import TensorRole
from dippm.graph.op_kind import OpKind

__all__ = ["drop_filler_bias"]

_BIASED = 3


def drop_filler_bias(editor: GraphEditor) -> None:
    """Take the bias away where it is a constant of the code: a trained one is a parameter."""
    for position, node in enumerate(editor.nodes):
        if node is None or node.kind not in (OpKind.CONV, OpKind.CONV_TRANSPOSE) or len(node.inputs) != _BIASED:
            continue
        bias = node.inputs[2]
        if bias >= 0 and editor.tensors[bias].role is TensorRole.CONSTANT:
            plain = editor.make_node(
                node.kind, node.inputs[:2], node.outputs, like=node, attributes=dict(node.attributes)
            )
            editor.replace(position, plain)
