"""A linear layer that another framework writes as an Einstein sum with its weight."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
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
        layer = editor.make_node(OpKind.LINEAR, node.inputs, node.outputs, like=node, attributes=attributes)
        editor.replace(position, layer)
