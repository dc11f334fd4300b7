"""Transpositions that follow one another are one, or none."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute
from dippm.graph.op_kind import OpKind

__all__ = ["cancel_transposes"]


def cancel_transposes(editor: GraphEditor) -> None:
    """Let a transposition of a transposition read the tensor itself, and take it out where it restores the order."""
    for position, node in enumerate(editor.nodes):
        if node is None or node.kind is not OpKind.VIEW:
            continue
        first = editor.writer_of_kind(node.inputs[0], OpKind.VIEW, "transpose")
        outer, inner = node.attributes.get("perm"), None if first is None else first.attributes.get("perm")
        if first is None or not isinstance(outer, tuple) or not isinstance(inner, tuple) or len(outer) != len(inner):
            continue
        perm = tuple(inner[axis] for axis in outer)
        if perm == tuple(range(len(perm))):
            editor.substitute(node.outputs[0], first.inputs[0])
            editor.remove(position)
            continue
        attributes: dict[str, Attribute] = {**node.attributes, "perm": perm}
        editor.replace(
            position, editor.make_node(OpKind.VIEW, first.inputs, node.outputs, like=node, attributes=attributes)
        )
