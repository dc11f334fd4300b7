"""A recurrent layer reads a batch of sequences as it stands, where a converter turns it to have the time first."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute
from dippm.graph.op_kind import RECURRENT_KINDS, OpKind

__all__ = ["take_batch_first"]

_SWAPPED = (1, 0, 2)


def take_batch_first(editor: GraphEditor) -> None:
    """Let PyTorch's ``batch_first`` take the place of a transposition in front; the result's readers get a view."""
    for position, node in enumerate(editor.nodes):
        if node is None or node.kind not in RECURRENT_KINDS or node.attributes.get("batch_first", False):
            continue
        turned = editor.writer_of_kind(node.inputs[0], OpKind.VIEW, "transpose")
        sequence = editor.tensors[node.outputs[0]]
        is_turned = turned is not None and turned.attributes.get("perm") == _SWAPPED
        if turned is None or not is_turned or len(sequence.shape) != len(_SWAPPED):
            continue
        length, batch, features = sequence.shape
        output = editor.add_tensor(sequence.name, (batch, length, features), sequence.dtype)
        attributes: dict[str, Attribute] = {**node.attributes, "batch_first": True}
        inputs, outputs = (turned.inputs[0], *node.inputs[1:]), (output, *node.outputs[1:])
        editor.insert_before(position, editor.make_node(node.kind, inputs, outputs, like=node, attributes=attributes))
        swap: dict[str, Attribute] = {"function": "transpose", "perm": _SWAPPED}
        view = editor.make_node(
            OpKind.VIEW, (output,), node.outputs[:1], like=node, source_op="Transpose", attributes=swap
        )
        editor.replace(position, view)
