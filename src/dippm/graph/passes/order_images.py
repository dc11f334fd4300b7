"""Images stand channels first in memory, as PyTorch holds them, whatever order the model's own framework has."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute, Node, TensorRole
from dippm.graph.op_kind import ACTIVATION_KINDS, OpKind

__all__ = ["order_images"]

_IMAGE_KINDS = frozenset(
    {OpKind.CONV, OpKind.CONV_TRANSPOSE, OpKind.BATCH_NORM, OpKind.MAX_POOL, OpKind.AVG_POOL, OpKind.PAD}
)
_FEATURE_WISE = ACTIVATION_KINDS | {OpKind.DROPOUT}
_MOST_FUNCTIONS = 8
_LEAST_RANK = 3


def order_images(editor: GraphEditor) -> None:
    """Take away what moves the channels of images between the first and the last place.

    - An input that is only ever read channels first is given so: nothing is rearranged, and what keeps the shape that
      the model's user knows is a view of the same memory.
    - Features that are flattened for a linear layer are flattened in the order in which they stand; the layer's weight
      would be in that order.
    """
    for position, node in enumerate(editor.nodes):
        if node is None or node.kind is not OpKind.VIEW:
            continue
        if _moves_channels(node, to_first=True) and _is_input_of_images(editor, node):
            _replace_view(editor, position, node, node.inputs[0])
        elif _is_flattening(editor, node):
            moved = editor.writer_of_kind(node.inputs[0], OpKind.VIEW, "transpose")
            if moved is not None and _moves_channels(moved, to_first=False):
                _replace_view(editor, position, node, moved.inputs[0])


def _replace_view(editor: GraphEditor, position: int, node: Node, source: int) -> None:
    attributes: dict[str, Attribute] = {"function": "reshape"}
    view = editor.make_node(OpKind.VIEW, (source,), node.outputs, like=node, attributes=attributes)
    editor.replace(position, view)


def _moves_channels(node: Node, *, to_first: bool) -> bool:
    perm = node.attributes.get("perm")
    if node.attributes.get("function") != "transpose" or not isinstance(perm, tuple) or len(perm) < _LEAST_RANK:
        return False
    last = len(perm) - 1
    return perm == ((0, last, *range(1, last)) if to_first else (0, *range(2, last + 1), 1))


def _is_input_of_images(editor: GraphEditor, node: Node) -> bool:
    if editor.tensors[node.inputs[0]].role is not TensorRole.INPUT:
        return False
    readers = editor.readers(node.outputs[0])
    return bool(readers) and all(reader >= 0 and editor.node(reader).kind in _IMAGE_KINDS for reader in readers)


def _is_flattening(editor: GraphEditor, node: Node) -> bool:
    if node.attributes.get("function") != "reshape":
        return False
    before, after = (editor.tensors[index].shape for index in (node.inputs[0], node.outputs[0]))
    is_flat = len(before) > len(after) == 2 and before[0] == after[0]
    return is_flat and _is_for_linear_layers(editor, node.outputs[0])


def _is_for_linear_layers(editor: GraphEditor, features: int) -> bool:
    """Whether all that reads features are linear layers, directly or past a function of each feature alone."""
    pending = [features]
    for tensor in pending:
        readers = editor.readers(tensor)
        if not readers or len(pending) > _MOST_FUNCTIONS:
            return False
        for reader in readers:
            node = editor.node(reader) if reader >= 0 else None
            if node is None or node.inputs[0] != tensor:
                return False
            if node.kind is OpKind.LINEAR and editor.is_weight(node.inputs[1]) and tensor not in node.inputs[1:]:
                continue
            if node.kind not in _FEATURE_WISE or len(node.inputs) != 1:
                return False
            pending.append(node.outputs[0])
    return True
