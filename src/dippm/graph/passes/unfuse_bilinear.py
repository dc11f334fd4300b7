"""Takes a bilinear layer that stands as one product apart into the products that PyTorch runs."""

from __future__ import annotations

from collections.abc import Sequence

from dippm.graph.dim import Dim, Shape
from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute, Node
from dippm.graph.op_kind import OpKind

__all__ = ["unfuse_bilinear"]

_ONE = Dim(0, 1)
_PRODUCTS = (OpKind.LINEAR, OpKind.MATMUL)


def unfuse_bilinear(editor: GraphEditor, parts: Sequence[int]) -> None:
    """Let each feature have two products and a sum of its own, as ``aten::_trilinear`` runs them.

    An exporter writes ``x W``, its rows seen as matrices, and these times ``y``: as much arithmetic in two launches.

    Args:
        editor: The graph.
        parts: Positions of the layer's parts, in order.
    """
    products = [editor.node(part) for part in parts if editor.node(part).kind in _PRODUCTS]
    if len(products) != 2:
        return
    (x, weight), (matrices, column) = (product.inputs[:2] for product in products)
    whole, per_feature = editor.tensors[weight].shape, editor.tensors[matrices].shape
    if not editor.is_weight(weight) or len(whole) != 2 or len(per_feature) < 2:
        return
    features, width = per_feature[-2].fixed, per_feature[-1]
    lead = editor.tensors[x].shape[:-1]
    last = next((part for part in parts if editor.node(part).kind is OpKind.ADD), parts[-1])
    position = parts[parts.index(last) - 1] if editor.node(last).kind is OpKind.ADD else last
    like = editor.node(position)

    def put(kind: OpKind, inputs: Sequence[int], shape: Shape, **attributes: Attribute) -> int:
        made = editor.add_tensor("", shape, editor.tensors[x].dtype)
        editor.insert_before(position, _node(editor, like, kind, inputs, made, attributes))
        return made

    zeros = put(OpKind.FILL, (), (*lead, Dim(0, features)), function="zeros")
    results = []
    for _ in range(features):
        matrix = put(OpKind.VIEW, (weight,), (whole[0], width), function="slice", axis=1)
        row = put(OpKind.MATMUL, (x, matrix), (*lead, width))
        row = put(OpKind.VIEW, (row,), (*lead, _ONE, width), function="reshape")
        share = put(OpKind.MATMUL, (row, column), (*lead, _ONE, _ONE))
        share = put(OpKind.VIEW, (share,), (*lead, _ONE), function="reshape")
        start = put(OpKind.VIEW, (zeros,), (*lead, _ONE), function="slice", axis=len(lead))
        results.append(put(OpKind.ADD, (start, share), (*lead, _ONE)))
    joined = _node(editor, like, OpKind.CONCAT, results, like.outputs[0], {"axis": len(lead)})
    editor.replace(position, joined)


def _node(
    editor: GraphEditor, like: Node, kind: OpKind, inputs: Sequence[int], output: int, attributes: dict[str, Attribute]
) -> Node:
    return editor.make_node(kind, inputs, (output,), like=like, source_op="bilinear", attributes=attributes)
