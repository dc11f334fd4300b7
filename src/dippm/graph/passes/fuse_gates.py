"""Activations that exporters write as a product of ``x`` and a gate of ``x``: SiLU, hard swish, mish."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_gates"]

_GATES = {OpKind.SIGMOID: OpKind.SILU, OpKind.HARD_SIGMOID: OpKind.HARD_SWISH}


def fuse_gates(editor: GraphEditor) -> None:
    """Recognize ``x sigmoid(x)``, ``x hard_sigmoid(x)`` and ``x tanh(softplus(x))``."""
    for position, node in enumerate(editor.nodes):
        if node is None or node.kind is not OpKind.MUL or len(node.inputs) != 2:
            continue
        for x, gate in (node.inputs, node.inputs[::-1]):
            found = _match(editor, position, x, gate)
            if found is None:
                continue
            kind, removed = found
            for number in removed:
                editor.remove(number)
            editor.replace(position, editor.make_node(kind, (x,), node.outputs, like=node, source_op=kind.value))
            break


def _match(editor: GraphEditor, position: int, x: int, gate: int) -> tuple[OpKind, list[int]] | None:
    writer = editor.writer(gate)
    if writer < 0 or editor.only_reader(gate) != position:
        return None
    node = editor.node(writer)
    if node.kind in _GATES and node.inputs == (x,):
        return _GATES[node.kind], [writer]
    if node.kind is OpKind.TANH:
        inner = editor.writer(node.inputs[0])
        softplus = editor.writer_of_kind(node.inputs[0], OpKind.SOFTPLUS)
        if softplus is not None and softplus.inputs == (x,) and editor.only_reader(node.inputs[0]) == writer:
            return OpKind.MISH, [writer, inner]
    return None
