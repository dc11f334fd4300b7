"""Scaled dot-product attention put together again from the parts that exporters take it apart into."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt

from dippm.graph.dim import Shape
from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute, Node
from dippm.graph.op_kind import OpKind
from dippm.graph.passes.chosen_numbers import chosen_numbers
from dippm.graph.passes.written_numbers import is_about

__all__ = ["fuse_attention", "fuse_converted_attention"]

_VIEWS_BACK = 4
_RANK = 4


def fuse_attention(editor: GraphEditor) -> None:
    """Recognize ``softmax((q sqrt(s)) (k sqrt(s))^T + mask) v`` with the scale on both sides.

    Exporters write PyTorch's fused attention with half of the scale on either side. A model that spells attention out
    itself scales one side or the product, and eager PyTorch then launches every part of it, so that is left as it is.
    """
    for position, node in enumerate(editor.nodes):
        if node is not None and node.kind is OpKind.SOFTMAX:
            _fuse(editor, position, node, is_converted=False)


def fuse_converted_attention(editor: GraphEditor) -> None:
    """Recognize attention with its scale ``1 / sqrt(size of a head)`` on one side, on both or on the product.

    Other frameworks have layers for attention, as PyTorch has, but save them as their parts; so a converted model's
    parts are one operator, where the same parts in a PyTorch module are what somebody wrote.
    """
    for position, node in enumerate(editor.nodes):
        if node is not None and node.kind is OpKind.SOFTMAX:
            _fuse(editor, position, node, is_converted=True)


def _fuse(editor: GraphEditor, position: int, softmax: Node, *, is_converted: bool) -> None:
    rank = len(editor.tensors[softmax.outputs[0]].shape)
    is_turned = is_converted and softmax.attributes.get("axes") == (rank - 2,)
    if not is_turned and softmax.attributes.get("axes") != (rank - 1,):
        return
    product, mask, is_causal, factor = _scores(editor, softmax.inputs[0], is_converted=is_converted)
    if product is None or (is_turned and mask is not None):
        return
    weights = _swapped(editor, softmax.outputs[0]) if is_turned else _after_guard(editor, softmax.outputs[0])
    weights = weights if is_turned else _after_mask(editor, weights, mask)
    weights = weights if weights is None or not is_converted else editor.after_cast(weights)
    reader = -1 if weights is None else editor.only_reader(weights)
    last = editor.node(reader) if reader >= 0 else None
    if last is None or last.kind is not OpKind.MATMUL or last.inputs[0] != weights:
        return
    operands = product.node.inputs
    is_turned = is_turned != product.is_turned
    if is_turned:  # the product is one of keys and turned queries
        key, key_factor = _unscaled(editor, operands[0])
        query, query_factor = _unscaled_in_own_order(editor, operands[1], reader)
    else:
        (query, query_factor), (key, key_factor) = (_unscaled(editor, tensor) for tensor in operands)
    factors = [factor or 1.0, query_factor or 1.0, key_factor or 1.0]
    if is_converted:
        head_size = editor.tensors[query].shape[-1].fixed
        if not is_about(prod(factors) * sqrt(head_size), 1.0):
            return
    elif factor or not (query_factor and key_factor and is_about(query_factor, key_factor)):
        return
    if not _is_plain(editor, query, last.outputs[0], is_converted=is_converted):
        return
    k = key if is_turned else _turned_back(editor, key)
    if k is None:
        k = _turn_back(editor, key, reader)
    if k is None:
        return
    inputs = [query, k, last.inputs[1]]
    if mask is not None and is_converted and _is_triangle(editor, mask):
        mask, is_causal = None, True
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


def _is_plain(editor: GraphEditor, query: int, out: int, *, is_converted: bool) -> bool:
    """Whether samples and heads are all that queries and results have before their last two dimensions.

    PyTorch's fused kernels take no more, no fewer, and no query that is the same for all samples: it runs those
    written out. What other frameworks' layers do without heads is one operator all the same.
    """
    queries, results = editor.tensors[query].shape, editor.tensors[out].shape
    has_rank = len(results) == _RANK or (is_converted and len(results) < _RANK)
    return has_rank and queries[:-2] == results[:-2]


def _is_triangle(editor: GraphEditor, mask: int) -> bool:
    """Whether a mask is half of a square of one number: the causal one, made as the model runs."""
    half = editor.writer_of_kind(mask, OpKind.UNARY, "trilu")
    return half is not None and editor.writer_of_kind(half.inputs[0], OpKind.FILL) is not None


def _unscaled(editor: GraphEditor, tensor: int) -> tuple[int, float | None]:
    """What a tensor is a multiple of, and the factor; the tensor itself and None where it is none."""
    for kind in (OpKind.MUL, OpKind.DIV):
        node = editor.writer_of_kind(tensor, kind)
        scalar = None if node is None else node.attributes.get("scalar")
        if node is None or len(node.inputs) != 1 or not isinstance(scalar, float) or not scalar:
            continue
        if kind is OpKind.MUL:
            return node.inputs[0], scalar
        if not node.attributes.get("scalar_first", False):
            return node.inputs[0], 1.0 / scalar
    return tensor, None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Product:
    """The product of queries and turned keys; where it is turned itself, of keys and turned queries."""

    node: Node
    is_turned: bool


def _scores(
    editor: GraphEditor, tensor: int, *, is_converted: bool
) -> tuple[_Product | None, int | None, bool, float | None]:
    """The product of queries and keys, the mask put on it, whether that is the causal one, the product's factor."""
    product, factor = _product(editor, tensor, is_converted=is_converted)
    if product is not None:
        return product, None, False, factor
    chosen = chosen_numbers(editor, tensor)
    if chosen is not None and chosen[2] < 0 and is_converted:
        product, factor = _product(editor, chosen[0], is_converted=True)
        return product, chosen[1], False, factor
    total = editor.writer_of_kind(tensor, OpKind.ADD)
    if total is None or len(total.inputs) != 2:
        return None, None, False, None
    for scores, mask in (total.inputs, total.inputs[::-1]):
        product, factor = _product(editor, scores, is_converted=is_converted)
        if product is not None:
            is_causal = bool(total.attributes.get("causal_mask", False))
            return product, None if is_causal else mask, is_causal, factor
    return None, None, False, None


def _product(editor: GraphEditor, scores: int, *, is_converted: bool) -> tuple[_Product | None, float | None]:
    tensor, factor = _unscaled(editor, scores)
    if is_converted:
        # In mixed precision scores are wide for the softmax alone, as within the fused operator.
        tensor = editor.before_cast(tensor)
    node = editor.writer_of_kind(tensor, OpKind.MATMUL)
    if node is not None or not is_converted:
        return None if node is None else _Product(node=node, is_turned=False), factor
    view = editor.writer_of_kind(tensor, OpKind.VIEW, "transpose")
    if view is not None and _is_swap(editor, view):
        node = editor.writer_of_kind(view.inputs[0], OpKind.MATMUL)
    return None if node is None else _Product(node=node, is_turned=True), factor


def _is_swap(editor: GraphEditor, view: Node) -> bool:
    """Whether a transposition swaps the last two dimensions and no others."""
    rank = len(editor.tensors[view.outputs[0]].shape)
    return view.attributes.get("perm") == (*range(rank - 2), rank - 1, rank - 2)


def _swapped(editor: GraphEditor, weights: int) -> int | None:
    """A tensor with its last two dimensions swapped, where nobody else reads it."""
    reader = editor.only_reader(weights)
    view = editor.node(reader) if reader >= 0 else None
    return view.outputs[0] if view is not None and view.kind is OpKind.VIEW and _is_swap(editor, view) else None


def _unscaled_in_own_order(editor: GraphEditor, tensor: int, position: int) -> tuple[int, float | None]:
    """What a transposed multiple is a multiple of, in the order before its last two dimensions were swapped."""
    view = editor.writer_of_kind(tensor, OpKind.VIEW, "transpose")
    perm = None if view is None else view.attributes.get("perm")
    if view is None or not isinstance(perm, tuple):
        return tensor, None
    source, factor = _unscaled(editor, view.inputs[0])
    shape = editor.tensors[tensor].shape
    attributes: dict[str, Attribute] = {"function": "transpose", "perm": (*perm[:-2], perm[-1], perm[-2])}
    return _insert_view(editor, position, source, (*shape[:-2], shape[-1], shape[-2]), view, attributes), factor


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
    """The keys in their own order where an exporter merged their transposition with another view.

    That is the transposition before it, or a reshape that parts what was one dimension of samples and heads.
    """
    spec = editor.tensors[tensor]
    turned = (*spec.shape[:-2], spec.shape[-1], spec.shape[-2]) if len(spec.shape) > 1 else ()
    view = editor.writer_of_kind(tensor, OpKind.VIEW, "reshape")
    if view is not None:
        first = editor.writer_of_kind(view.inputs[0], OpKind.VIEW, "transpose")
        if first is None or editor.tensors[view.inputs[0]].shape[-2:] != spec.shape[-2:]:
            return None
        rank = len(editor.tensors[view.inputs[0]].shape)
        if first.attributes.get("perm") != (*range(rank - 2), rank - 1, rank - 2):
            return None
        return _insert_view(editor, position, first.inputs[0], turned, view, {"function": "reshape"})
    view = editor.writer_of_kind(tensor, OpKind.VIEW, "transpose")
    perm = None if view is None else view.attributes.get("perm")
    if view is None or not isinstance(perm, tuple) or len(perm) != len(spec.shape) or len(perm) < 2:
        return None
    attributes: dict[str, Attribute] = {"function": "transpose", "perm": (*perm[:-2], perm[-1], perm[-2])}
    return _insert_view(editor, position, view.inputs[0], turned, view, attributes)


def _insert_view(
    editor: GraphEditor, position: int, source: int, shape: Shape, like: Node, attributes: dict[str, Attribute]
) -> int:
    spec = editor.tensors[source]
    output = editor.add_tensor(spec.name, shape, spec.dtype)
    editor.insert_before(
        position, editor.make_node(OpKind.VIEW, (source,), (output,), like=like, attributes=attributes)
    )
    return output


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


def _after_mask(editor: GraphEditor, weights: int | None, mask: int | None) -> int | None:
    """Weights past the scores' mask where it is put on them again, which sets to 0 what is 0 already."""
    product = -1 if weights is None else editor.only_reader(weights)
    total = editor.only_reader(editor.node(product).outputs[0]) if product >= 0 else -1
    if total < 0:
        return weights
    after = editor.node(total).outputs[0]
    chosen = chosen_numbers(editor, after)
    return after if chosen == (weights, mask, 0.0) else weights


def _boolean_mask(editor: GraphEditor, mask: int) -> int:
    """The mask itself where the exporter turned a boolean one into 0 and minus infinity."""
    choice = editor.writer_of_kind(mask, OpKind.BINARY, "where")
    return choice.inputs[0] if choice is not None and len(choice.inputs) == 1 else mask
