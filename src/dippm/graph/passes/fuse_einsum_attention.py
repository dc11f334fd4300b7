"""Attention whose products are written as Einstein sums over heads that stand behind the length."""

from __future__ import annotations

from math import isfinite

from dippm.graph.dim import Dim
from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute, Node
from dippm.graph.op_kind import OpKind
from dippm.graph.passes.chosen_numbers import chosen_numbers

__all__ = ["fuse_einsum_attention"]

_RANK = 4
_SWAPPED = (0, 2, 1, 3)


def fuse_einsum_attention(editor: GraphEditor) -> None:
    """Recognize ``softmax(s q k + mask) v`` of queries, keys and values in [batch, length, heads, size].

    So is ``softmax(m (s q k) - (1 - m) large) v`` with a mask m of yes and no, as Keras applies one. Keras's layer for
    attention is written so; PyTorch's fused operator takes the heads before the length, which costs it views. The scale
    is a number, on the product or on either side of it: one of each head or channel is no scale.
    """
    for node in list(editor.nodes):
        if node is not None and node.kind is OpKind.SOFTMAX and node.attributes.get("axes") == (_RANK - 1,):
            _fuse(editor, node)


def _fuse(editor: GraphEditor, softmax: Node) -> None:
    weights = softmax.outputs[0]
    shape = editor.tensors[weights].shape
    weights = editor.after_cast(weights)
    last = editor.only_reader(weights)
    product, mask = _find_product(editor, softmax.inputs[0])
    if len(shape) != _RANK or last < 0 or product is None:
        return
    batch, heads, queries, keys = shape
    mixing = editor.node(last)
    result = editor.tensors[mixing.outputs[0]]
    if mixing.kind is not OpKind.MATMUL or "contracted" not in mixing.attributes or weights not in mixing.inputs:
        return
    value = mixing.inputs[1] if mixing.inputs[0] == weights else mixing.inputs[0]
    first, second = (_without_scale(editor, tensor) for tensor in product.inputs)
    # A sum takes its operands in either order; where both are of one length it makes no difference which is which.
    q, k = (first, second) if _is_laid_out(editor, first, batch, queries, heads) else (second, first)
    wanted = ((q, queries), (k, keys), (value, keys), (mixing.outputs[0], queries))
    if not all(_is_laid_out(editor, tensor, batch, length, heads) for tensor, length in wanted):
        return
    size = editor.tensors[q].shape[-1]
    if size != editor.tensors[k].shape[-1] or not (_is_summed_over(product, size) and _is_summed_over(mixing, keys)):
        return
    inputs = [_swap(editor, last, mixing, tensor) for tensor in (q, k, value)]
    if mask is not None:
        inputs.append(mask)
    output = editor.add_tensor(result.name, (batch, heads, queries, result.shape[-1]), result.dtype)
    attention = editor.make_node(
        OpKind.ATTENTION,
        inputs,
        (output,),
        like=mixing,
        source_op="scaled_dot_product_attention",
        attributes={"is_causal": False},
    )
    editor.insert_before(last, attention)
    editor.replace(last, _make_swap(editor, mixing, output, mixing.outputs[0]))


def _find_product(editor: GraphEditor, tensor: int) -> tuple[Node | None, int | None]:
    """The product that scores come from, past their scale, and the mask that is put on them."""
    mask: int | None = None
    total = editor.writer_of_kind(tensor, OpKind.ADD)
    chosen = chosen_numbers(editor, tensor)
    if chosen is not None and chosen[2] < 0:
        tensor, mask = chosen[:2]
    elif total is not None and len(total.inputs) == 2:
        for scores, other in (total.inputs, total.inputs[::-1]):
            if _product(editor, scores) is not None:
                tensor, mask = scores, other
                break
    return _product(editor, tensor), mask


def _product(editor: GraphEditor, tensor: int) -> Node | None:
    # In mixed precision scores are wide for the softmax alone, as within the fused operator.
    unscaled = editor.before_cast(_without_scale(editor, tensor))
    node = editor.writer_of_kind(unscaled, OpKind.MATMUL)
    is_sum = node is not None and "contracted" in node.attributes and len(node.inputs) == 2
    return node if is_sum and editor.only_reader(tensor) >= 0 and editor.only_reader(unscaled) >= 0 else None


def _without_scale(editor: GraphEditor, tensor: int) -> int:
    """What a tensor is a multiple of by one known number, as the fused operator's scale is; else the tensor itself."""
    node = editor.writer_of_kind(tensor, OpKind.MUL) or editor.writer_of_kind(tensor, OpKind.DIV)
    scale = None if node is None else node.attributes.get("scalar")
    if node is None or len(node.inputs) != 1 or not isinstance(scale, float) or not isfinite(scale) or not scale:
        return tensor
    is_inverse = node.kind is OpKind.DIV and node.attributes.get("scalar_first", False)
    return tensor if is_inverse else node.inputs[0]


def _is_summed_over(node: Node, length: Dim) -> bool:
    """Whether an Einstein sum goes over one dimension of that length and no other."""
    return length.per_sample == 0 and node.attributes.get("contracted") == length.fixed


def _is_laid_out(editor: GraphEditor, tensor: int, batch: Dim, length: Dim, heads: Dim) -> bool:
    shape = editor.tensors[tensor].shape
    return len(shape) == _RANK and shape[:-1] == (batch, length, heads)


def _swap(editor: GraphEditor, position: int, like: Node, tensor: int) -> int:
    spec = editor.tensors[tensor]
    swapped = editor.add_tensor(spec.name, tuple(spec.shape[axis] for axis in _SWAPPED), spec.dtype)
    editor.insert_before(position, _make_swap(editor, like, tensor, swapped))
    return swapped


def _make_swap(editor: GraphEditor, like: Node, source: int, output: int) -> Node:
    attributes: dict[str, Attribute] = {"function": "transpose", "perm": _SWAPPED}
    return editor.make_node(OpKind.VIEW, (source,), (output,), like=like, source_op="Transpose", attributes=attributes)
