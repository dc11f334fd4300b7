"""A stored weight stands in the order in which its operator reads it."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import TensorRole
from dippm.graph.op_kind import OpKind

__all__ = ["fold_weight_views"]

_REORDERING = frozenset({"transpose", "reshape"})


def fold_weight_views(editor: GraphEditor) -> None:
    """Store a weight as its only reader rearranges it: frameworks differ in the order of a kernel's dimensions."""
    for position, node in enumerate(editor.nodes):
        if node is None or node.kind is not OpKind.VIEW or node.attributes.get("function") not in _REORDERING:
            continue
        source, output = node.inputs[0], node.outputs[0]
        weight = editor.tensors[source]
        if weight.role not in (TensorRole.PARAMETER, TensorRole.BUFFER) or editor.only_reader(source) != position:
            continue
        stored = editor.add_tensor(weight.name, editor.tensors[output].shape, weight.dtype, role=weight.role)
        editor.substitute(output, stored)
        editor.remove(position)
