"""What follows from constants alone is a constant: computed once, not at every call."""

from __future__ import annotations

from dataclasses import replace

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import TensorRole
from dippm.graph.op_kind import OpKind

__all__ = ["fold_constants"]

_MADE_ANEW = frozenset({OpKind.RANDOM, OpKind.DROPOUT, OpKind.FILL})


def fold_constants(editor: GraphEditor) -> None:
    """Take out nodes that read constants and nothing else; their outputs become constants.

    Nodes that read parameters stay: a program that was not frozen computes from them at every call.
    """
    for position, node in enumerate(editor.nodes):
        if node is None or not node.inputs or node.kind in _MADE_ANEW:
            continue
        tensors = [editor.tensors[index] for index in node.inputs if index >= 0]
        if not tensors or any(tensor.role is not TensorRole.CONSTANT for tensor in tensors):
            continue
        for index in node.outputs:
            editor.tensors[index] = replace(editor.tensors[index], role=TensorRole.CONSTANT, alias_of=None)
        editor.remove(position)
