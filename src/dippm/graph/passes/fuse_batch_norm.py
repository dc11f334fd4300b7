"""Batch normalization by the batch's own statistics, which exporters compute in front of it."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_batch_norm"]

_MEAN, _VARIANCE = 3, 4


def fuse_batch_norm(editor: GraphEditor) -> None:
    """Drop computed statistics from the inputs of a normalization: its kernel works them out itself."""
    for position, node in enumerate(editor.nodes):
        if node is None or node.kind is not OpKind.BATCH_NORM or len(node.inputs) <= _VARIANCE:
            continue
        mean, variance = (_behind_views(editor, node.inputs[which]) for which in (_MEAN, _VARIANCE))
        if editor.writer_of_kind(mean, OpKind.REDUCE) is None or editor.writer_of_kind(variance, OpKind.REDUCE) is None:
            continue
        editor.replace(
            position,
            editor.make_node(
                OpKind.BATCH_NORM, node.inputs[:_MEAN], node.outputs, like=node, attributes=node.attributes
            ),
        )


def _behind_views(editor: GraphEditor, tensor: int) -> int:
    while (view := editor.writer_of_kind(tensor, OpKind.VIEW)) is not None:
        tensor = view.inputs[0]
    return tensor
