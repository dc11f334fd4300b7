"""A linear layer that another framework writes as an Einstein sum with its weight."""

from __future__ import annotations

from functools import partial

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Node
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_einsum_linear"]


def fuse_einsum_linear(editor: GraphEditor) -> None:
    """Recognize a sum over letters of an activation and of a stored tensor that no other letters join.

    Keras's dense layers over several dimensions are written so, among them the projections of its attention. The same
    sum in a PyTorch module runs as PyTorch runs Einstein sums.
    """
    for position, node in enumerate(editor.nodes):
        equation = None if node is None else node.attributes.get("equation")
        if node is None or node.kind is not OpKind.MATMUL or not isinstance(equation, str):
            continue
        factors, _, kept = equation.partition("->")
        left, _, right = factors.partition(",")
        is_joined = any(letter in right and letter in kept for letter in left)
        if is_joined or not kept or kept[-1] not in right or not editor.is_weight(node.inputs[1]):
            continue
        attributes = {name: value for name, value in node.attributes.items() if name != "equation"}
        make = partial(editor.make_node, OpKind.LINEAR, like=node, attributes=attributes)
        addition, bias = _bias(editor, node, len([letter for letter in right if letter in kept]))
        if addition < 0:
            editor.replace(position, make(node.inputs, node.outputs))
        else:
            editor.remove(position)
            editor.replace(addition, make((*node.inputs, bias), editor.node(addition).outputs))


def _bias(editor: GraphEditor, product: Node, rank: int) -> tuple[int, int]:
    """Where one stored number for each output is added, and the tensor that holds them; -1 twice where none is."""
    position = editor.only_reader(product.outputs[0])
    node = editor.node(position) if position >= 0 else None
    if node is None or node.kind is not OpKind.ADD or len(node.inputs) != 2:
        return -1, -1
    bias = node.inputs[1] if node.inputs[0] == product.outputs[0] else node.inputs[0]
    wanted = editor.tensors[product.outputs[0]].shape[-rank:]
    is_bias = editor.is_stored_or_cast(bias) and editor.tensors[bias].shape == wanted
    return (position, bias) if is_bias else (-1, -1)
