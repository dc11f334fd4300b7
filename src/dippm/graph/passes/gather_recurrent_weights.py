"""Recurrent layers read their own weights, not the reordered ones that an exporter computes for another framework."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Node, TensorRole
from dippm.graph.op_kind import RECURRENT_KINDS, OpKind

__all__ = ["gather_recurrent_weights", "stored_behind"]

_REARRANGING = frozenset({OpKind.VIEW, OpKind.COPY, OpKind.CONCAT})


def gather_recurrent_weights(editor: GraphEditor) -> None:
    """Let each recurrent node read the stored tensors behind slices and concatenations of its weights."""
    for position, node in enumerate(editor.nodes):
        if node is None or node.kind not in RECURRENT_KINDS:
            continue
        inputs: list[int] = []
        for tensor in node.inputs:
            for source in stored_behind(editor, tensor) or [tensor]:
                if source not in inputs:
                    inputs.append(source)
        if tuple(inputs) != node.inputs:
            attributes = node.attributes
            editor.replace(
                position, editor.make_node(node.kind, inputs, node.outputs, like=node, attributes=attributes)
            )


def stored_behind(editor: GraphEditor, tensor: int) -> list[int]:
    """The stored tensors that a tensor is rearranged from, none where it is computed from anything else."""
    found: list[int] = []
    pending = [tensor]
    seen: set[int] = set()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if editor.is_stored(current):
            if editor.tensors[current].role is not TensorRole.CONSTANT:
                found.append(current)
            continue
        position = editor.writer(current)
        node: Node | None = editor.node(position) if position >= 0 else None
        if node is None or node.kind not in _REARRANGING:
            return []
        pending.extend(reversed(node.inputs))
    return found
