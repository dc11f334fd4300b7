"""Layer normalization put together again from the form that TensorFlow computes it in."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute, Node
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_moment_norm"]


def fuse_moment_norm(editor: GraphEditor) -> None:
    """Recognize ``x s + (beta - mean s)`` with ``s = gamma / sqrt(mean((x - mean)^2) + eps)`` over the last dimensions.

    ``gamma`` and ``beta`` may be absent. ``tf.nn.batch_normalization`` writes it so, and Keras's layer normalization
    with it.
    """
    for position, node in enumerate(editor.nodes):
        if node is not None and node.kind in (OpKind.ADD, OpKind.SUB) and len(node.inputs) == 2:
            _fuse(editor, position, node)


def _fuse(editor: GraphEditor, position: int, last: Node) -> None:
    for scaled, shift in (last.inputs, last.inputs[::-1]):
        product = editor.writer_of_kind(scaled, OpKind.MUL)
        if product is None or len(product.inputs) != 2:
            continue
        for x, factor in (product.inputs, product.inputs[::-1]):
            found = _factor(editor, factor, x)
            if found is None:
                continue
            mean, gamma, axes = found
            is_shift, beta = _shift(editor, last, shift, mean, factor)
            if not is_shift:
                continue
            weights = [weight for weight in (gamma, beta) if weight is not None]
            if (beta is not None and gamma is None) or not all(_covers(editor, each, x, axes) for each in weights):
                continue
            size = 1
            for axis in axes:
                size *= editor.tensors[x].shape[axis].fixed
            attributes: dict[str, Attribute] = {"axes_size": size}
            norm = editor.make_node(
                OpKind.LAYER_NORM, (x, *weights), last.outputs, like=last, source_op="layer_norm", attributes=attributes
            )
            # The parts lose their reader and go with the unused nodes.
            editor.replace(position, norm)
            return


def _factor(editor: GraphEditor, tensor: int, x: int) -> tuple[int, int | None, tuple[int, ...]] | None:
    """The mean, the scale and the dimensions of ``gamma / sqrt(mean((x - mean)^2) + eps)``."""
    gamma: int | None = None
    product = editor.writer_of_kind(tensor, OpKind.MUL)
    if product is not None and len(product.inputs) == 2:
        for root, weight in (product.inputs, product.inputs[::-1]):
            if editor.is_stored(weight):
                tensor, gamma = root, weight
                break
    variance = _under_root(editor, tensor)
    node = None if variance is None else editor.writer_of_kind(variance, OpKind.REDUCE, "mean")
    axes = None if node is None else _trailing_axes(editor, node)
    square = None if node is None else editor.writer_of_kind(node.inputs[0], OpKind.MUL)
    if axes is None or square is None or len(square.inputs) != 2 or square.inputs[0] != square.inputs[1]:
        return None
    centred = editor.writer_of_kind(square.inputs[0], OpKind.SUB)
    for mean in () if centred is None or x not in centred.inputs else centred.inputs:
        average = editor.writer_of_kind(mean, OpKind.REDUCE, "mean")
        if average is not None and average.inputs == (x,) and average.attributes.get("axes") == axes:
            return mean, gamma, axes
    return None


def _under_root(editor: GraphEditor, tensor: int) -> int | None:
    """V of ``1 / sqrt(v + eps)``."""
    node = editor.writer_of_kind(tensor, OpKind.UNARY, "reciprocal")
    root = None if node is None else editor.writer_of_kind(node.inputs[0], OpKind.UNARY, "sqrt")
    if root is None:
        root = editor.writer_of_kind(tensor, OpKind.UNARY, "rsqrt")
    total = None if root is None else editor.writer_of_kind(root.inputs[0], OpKind.ADD)
    return None if total is None or "scalar" not in total.attributes or len(total.inputs) != 1 else total.inputs[0]


def _shift(editor: GraphEditor, last: Node, tensor: int, mean: int, factor: int) -> tuple[bool, int | None]:
    """Whether a tensor is ``beta - mean s``, or ``mean s`` where it is subtracted, and its ``beta``."""
    if last.kind is OpKind.SUB:
        return tensor == last.inputs[1] and _is_moved_mean(editor, tensor, mean, factor) == 1, None
    if _is_moved_mean(editor, tensor, mean, factor) == -1:
        return True, None
    node = editor.writer_of_kind(tensor, OpKind.SUB)
    if node is not None and len(node.inputs) == 2:
        beta, moved = node.inputs
        return editor.is_stored(beta) and _is_moved_mean(editor, moved, mean, factor) == 1, beta
    node = editor.writer_of_kind(tensor, OpKind.ADD)
    for beta, moved in () if node is None or len(node.inputs) != 2 else (node.inputs, node.inputs[::-1]):
        if editor.is_stored(beta) and _is_moved_mean(editor, moved, mean, factor) == -1:
            return True, beta
    return False, None


def _is_moved_mean(editor: GraphEditor, tensor: int, mean: int, factor: int) -> int:
    """The sign of ``mean s``, 0 for anything else."""
    product = editor.writer_of_kind(tensor, OpKind.MUL)
    if product is None or len(product.inputs) != 2 or factor not in product.inputs:
        return 0
    other = product.inputs[1] if product.inputs[0] == factor else product.inputs[0]
    if other == mean:
        return 1
    negated = editor.writer_of_kind(other, OpKind.UNARY, "neg")
    return -1 if negated is not None and negated.inputs == (mean,) else 0


def _trailing_axes(editor: GraphEditor, node: Node) -> tuple[int, ...] | None:
    axes = node.attributes.get("axes")
    shape = editor.tensors[node.inputs[0]].shape
    if not isinstance(axes, tuple) or not axes or axes != tuple(range(len(shape) - len(axes), len(shape))):
        return None
    return axes if all(shape[axis].per_sample == 0 for axis in axes) else None


def _covers(editor: GraphEditor, weight: int, x: int, axes: tuple[int, ...]) -> bool:
    """Whether a weight has one number for each element that is normalized over."""
    shape = editor.tensors[weight].shape
    wanted = tuple(editor.tensors[x].shape[axis] for axis in axes)
    return shape[-len(wanted) :] == wanted and all(dim.at(1) == 1 for dim in shape[: -len(wanted)])
