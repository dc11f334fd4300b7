"""Recurrent layers read and write sequences as PyTorch's do, not as ONNX defines them."""

from __future__ import annotations

from collections.abc import Sequence

from dippm.graph.dim import Dim, Shape
from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute, Node
from dippm.graph.op_kind import RECURRENT_KINDS, OpKind
from dippm.graph.passes.arrangement import Arrangement

__all__ = ["settle_recurrent_layout"]

_TO_LENGTH_FIRST = (1, 0, 2)
# Dimensions of [length, directions, batch, hidden] that PyTorch's sequences join.
_LENGTH_FIRST = ((0,), (2,), (1, 3))
_BATCH_FIRST = ((2,), (0,), (1, 3))


def settle_recurrent_layout(editor: GraphEditor) -> None:
    """Take out the views that ONNX needs around a recurrent layer.

    ONNX writes [length, directions, batch, hidden], where PyTorch has the directions side by side. Frameworks whose
    layers take the batch first transpose around the operator; PyTorch's take ``batch_first`` instead.
    """
    for position, node in enumerate(editor.nodes):
        if node is None or node.kind not in RECURRENT_KINDS or node.attributes.get("batch_first", False):
            continue
        shape = editor.tensors[node.outputs[0]].shape
        if len(shape) != 4:
            continue
        length, directions, batch, hidden = shape
        features = Dim(0, directions.fixed * hidden.fixed)
        turned = editor.writer_of_kind(node.inputs[0], OpKind.VIEW, "transpose")
        if turned is not None and turned.attributes.get("perm") == _TO_LENGTH_FIRST:
            inputs = (turned.inputs[0], *node.inputs[1:])
            chain = _views_to(editor, node, (batch, length, features), _BATCH_FIRST)
            if chain:
                _rewrite(editor, position, inputs, chain, is_batch_first=True)
                continue
        chain = _views_to(editor, node, (length, batch, features), _LENGTH_FIRST)
        if chain:
            _rewrite(editor, position, node.inputs, chain, is_batch_first=False)


def _views_to(editor: GraphEditor, node: Node, wanted: Shape, order: Sequence[Sequence[int]]) -> list[int]:
    """Positions of the views that lead from a layer's sequence to one of that shape; empty where they do not.

    Args:
        editor: The graph.
        node: The layer.
        wanted: The shape.
        order: Which of the sequence's dimensions each dimension of that shape joins.
    """
    chain: list[int] = []
    tensor = node.outputs[0]
    arrangement = Arrangement(editor.tensors[tensor].shape)
    while editor.tensors[tensor].shape != wanted or not arrangement.is_order(order):
        reader = editor.only_reader(tensor)
        view = editor.node(reader) if reader >= 0 else None
        if view is None or not arrangement.follow(view, editor.tensors[view.outputs[0]].shape):
            return []
        chain.append(reader)
        tensor = view.outputs[0]
    return chain


def _rewrite(
    editor: GraphEditor, position: int, inputs: tuple[int, ...], chain: list[int], *, is_batch_first: bool
) -> None:
    node = editor.node(position)
    sequence = editor.node(chain[-1]).outputs[0]
    for view in chain:
        editor.remove(view)
    attributes: dict[str, Attribute] = {**node.attributes, "batch_first": is_batch_first}
    outputs = (sequence, *node.outputs[1:])
    editor.replace(position, editor.make_node(node.kind, inputs, outputs, like=node, attributes=attributes))
