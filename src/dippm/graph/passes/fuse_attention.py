"""Scaled dot-product attention put together again from the parts that exporters take it apart into."""

from __future__ import annotations

from math import isclose

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute, Node
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_attention"]

_VIEWS_BACK = 4


def fuse_attention(editor: GraphEditor) -> None:
    """Recognize ``softmax((q sqrt(s)) (k sqrt(s))^T + mask) v`` with the scale on both sides.

    Exporters write PyTorch's fused attention with half of the scale on either side. A model that spells attention out
    itself scales one side or the product, and eager PyTorch then launches every part of it, so that is left as it is.
    """
    for position, node in enumerate(editor.nodes):
        if node is not None and node.kind is OpKind.SOFTMAX:
            _fuse(editor, position, node)


def _fuse(editor: GraphEditor, position: int, softmax: Node) -> None:
    rank = len(editor.tensors[softmax.outputs[0]].shape)
    if softmax.attributes.get("axes") != (rank - 1,):
        return
    product, mask, is_causal = _scores(editor, softmax.inputs[0])
    if product is None:
        return
    query, key = (editor.writer_of_kind(tensor, OpKind.MUL) for tensor in product.inputs)
    if query is None or key is None:
        return
    scales = [node.attributes.get("scalar") for node in (query, key)]
    if not all(isinstance(scale, float) for scale in scales) or not isclose(*scales, rel_tol=1e-3):  # type: ignore[arg-type]
        return
    weights = _after_guard(editor, softmax.outputs[0])
    reader = -1 if weights is None else editor.only_reader(weights)
    last = editor.node(reader) if reader >= 0 else None
    if last is None or last.kind is not OpKind.MATMUL or last.inputs[0] != weights:
        return
    k = _turned_back(editor, key.inputs[0])
    if k is None:
        k = _turn_back(editor, key.inputs[0], reader)
    if k is None:
        return
    inputs = [query.inputs[0], k, last.inputs[1]]
    if mask is not None:
        inputs.append(_boolean_mask(editor, mask))
    editor.remove(position)
    editor.replace(
        reader,
        editor.make_node(
            OpKind.ATTENTION,
            inputs,
            last.outputs,
            like=last,
            source_op="scaled_dot_product_attention",
            attributes={"is_causal": is_causal},
        ),
    )


def _scores(editor: GraphEditor, tensor: int) -> tuple[Node | None, int | None, bool]:
    """The product of queries and keys, the mask added to it, and whether that is the causal one."""
    product = editor.writer_of_kind(tensor, OpKind.MATMUL)
    if product is not None:
        return product, None, False
    total = editor.writer_of_kind(tensor, OpKind.ADD)
    if total is None or len(total.inputs) != 2:
        return None, None, False
    for scores, mask in (total.inputs, total.inputs[::-1]):
        product = editor.writer_of_kind(scores, OpKind.MATMUL)
        if product is not None:
            is_causal = bool(total.attributes.get("causal_mask", False))
            return product, None if is_causal else mask, is_causal
    return None, None, False


def _turned_back(editor: GraphEditor, tensor: int) -> int | None:
    """The keys of which a tensor is the transposed view."""
    shape = editor.tensors[tensor].shape
    wanted = (*shape[:-2], shape[-1], shape[-2])
    is_turned = False
    for _ in range(_VIEWS_BACK):
        view = editor.writer_of_kind(tensor, OpKind.VIEW)
        if view is None:
            return None
        is_turned = is_turned or view.attributes.get("function") == "transpose"
        tensor = view.inputs[0]
        if is_turned and editor.tensors[tensor].shape == wanted:
            return tensor
    return None


def _turn_back(editor: GraphEditor, tensor: int, position: int) -> int | None:
    """The keys in their own order where an exporter merged their transposition with the one before it."""
    view = editor.writer_of_kind(tensor, OpKind.VIEW, "transpose")
    perm = None if view is None else view.attributes.get("perm")
    spec = editor.tensors[tensor]
    if view is None or not isinstance(perm, tuple) or len(perm) != len(spec.shape) or len(perm) < 2:
        return None
    turned = editor.add_tensor(spec.name, (*spec.shape[:-2], spec.shape[-1], spec.shape[-2]), spec.dtype)
    attributes: dict[str, Attribute] = {"function": "transpose", "perm": (*perm[:-2], perm[-1], perm[-2])}
    editor.insert_before(
        position, editor.make_node(OpKind.VIEW, view.inputs, (turned,), like=view, attributes=attributes)
    )
    return turned


def _after_guard(editor: GraphEditor, weights: int) -> int | None:
    """The softmax's result, past the guard that replaces NaN by 0 where a mask leaves nothing."""
    readers = editor.readers(weights)
    if len(readers) != 2 or -1 in readers:
        return weights
    for test, choice in (readers, readers[::-1]):
        first, second = editor.node(test), editor.node(choice)
        is_test = first.kind is OpKind.UNARY and first.attributes.get("function") == "isnan"
        if is_test and second.kind is OpKind.BINARY and second.attributes.get("function") == "where":
            return second.outputs[0] if second.inputs == (first.outputs[0], weights) else None
    return None


def _boolean_mask(editor: GraphEditor, mask: int) -> int:
    """The mask itself where the exporter turned a boolean one into 0 and minus infinity."""
    choice = editor.writer_of_kind(mask, OpKind.BINARY, "where")
    return choice.inputs[0] if choice is not None and len(choice.inputs) == 1 else mask
