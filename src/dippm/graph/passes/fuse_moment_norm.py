"""Layer and group normalization put together again from the form that TensorFlow computes them in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from dippm.graph.dim import Dim, Shape
from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute, Node
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_moment_norm"]

Axes = tuple[int, ...]
Inputs = tuple[int, ...]


def fuse_moment_norm(editor: GraphEditor) -> None:
    """Recognize ``x s + (beta - mean s)`` with ``s = gamma / sqrt(mean((x - mean)^2) + eps)``.

    ``gamma`` and ``beta`` may be absent. ``tf.nn.batch_normalization`` writes it so, and Keras's layer and group
    normalization with it; behind a convolution tf2onnx moves the transposition of the image past some of the parts.
    The mean may be:

    - over the last dimensions;
    - over the second alone, the channels of an image: they are moved to the end and back, for PyTorch's layer
      normalization takes the last dimensions;
    - over all but the samples and the groups, where a view splits the last dimension into groups: the channels are
      moved to the second place and back, where PyTorch's group normalization takes them.
    """
    for position, node in enumerate(editor.nodes):
        if node is not None and node.kind in (OpKind.ADD, OpKind.SUB) and len(node.inputs) == 2:
            _fuse(editor, position, node)


@dataclass(frozen=True, slots=True)
class _Factor:
    """``gamma / sqrt(mean((x - mean)^2) + eps)``.

    Args:
        mean: The mean.
        axes: The dimensions of ``x`` that it is over.
        gamma: The scale, None where there is none.
        perm: How the factor was transposed behind its product with the scale.
    """

    mean: int
    axes: Axes
    gamma: int | None
    perm: Axes


def _fuse(editor: GraphEditor, position: int, last: Node) -> None:
    for scaled, shift in (last.inputs, last.inputs[::-1]):
        product = editor.writer_of_kind(scaled, OpKind.MUL)
        if product is None or len(product.inputs) != 2:
            continue
        for x, scale in (product.inputs, product.inputs[::-1]):
            factor = _factor(editor, scale, x)
            if factor is None:
                continue
            is_shift, beta = _shift(editor, last, shift, factor.mean, scale)
            if not is_shift or (beta is not None and factor.gamma is None):
                continue
            shape, axes = editor.tensors[x].shape, factor.axes
            weights = tuple(weight for weight in (factor.gamma, beta) if weight is not None)
            if _is_over_features(shape, axes) and _cover(editor, factor, beta, shape, axes):
                _put_layer_norm(editor, position, last, (x, *weights), axes)
                return
            groups = (len(shape) - 2, len(shape) - 1)
            if _is_over_groups(shape, axes) and _cover(editor, factor, beta, shape, groups):
                _put_group_norm(editor, last, (x, *weights))
                return


def _factor(editor: GraphEditor, tensor: int, x: int) -> _Factor | None:
    """The factor that ``x`` is multiplied with, None where it is something else."""
    tensor, perm = _before_transposes(editor, tensor)
    gamma: int | None = None
    product = editor.writer_of_kind(tensor, OpKind.MUL)
    if product is not None and len(product.inputs) == 2:
        for root, weight in (product.inputs, product.inputs[::-1]):
            if editor.is_stored(weight):
                tensor, gamma = root, weight
                break
    variance = _under_root(editor, tensor)
    node = None if variance is None else editor.writer_of_kind(variance, OpKind.REDUCE, "mean")
    square = None if node is None else editor.writer_of_kind(node.inputs[0], OpKind.MUL)
    if node is None or square is None or len(square.inputs) != 2 or square.inputs[0] != square.inputs[1]:
        return None
    centred = editor.writer_of_kind(square.inputs[0], OpKind.SUB)
    if centred is None or len(centred.inputs) != 2:
        return None
    image, mean = centred.inputs
    mean = _same_numbers(editor, mean)
    average = editor.writer_of_kind(mean, OpKind.REDUCE, "mean")
    base, order = _before_transposes(editor, x)
    if average is None:
        return None
    # Each mean is over dimensions of a tensor of its own, all of which are transpositions of one.
    over = [
        _reduced_axes(editor, source, reduced.attributes.get("axes"), base)
        for source, reduced in ((image, node), (average.inputs[0], average))
    ]
    if over[0] is None or over[0] != over[1]:
        return None
    axes = tuple(sorted(order.index(axis) for axis in over[0]))
    shape = editor.tensors[x].shape
    if any(shape[axis].per_sample for axis in axes):
        return None
    return _Factor(mean, axes, gamma, perm if len(perm) == len(shape) else tuple(range(len(shape))))


def _reduced_axes(editor: GraphEditor, tensor: int, axes: Attribute | None, base: int) -> Axes | None:
    """Dimensions of a transposition of a tensor as those of the tensor itself; None where it is of another one."""
    source, order = _before_transposes(editor, tensor)
    if source != base or not isinstance(axes, tuple) or not axes:
        return None
    return tuple(sorted(order[axis] for axis in axes if isinstance(axis, int)))


def _before_transposes(editor: GraphEditor, tensor: int) -> tuple[int, Axes]:
    """What a tensor is a transposition of, and which dimension of that each of its own is."""
    order = tuple(range(len(editor.tensors[tensor].shape)))
    while (view := editor.writer_of_kind(tensor, OpKind.VIEW, "transpose")) is not None:
        perm = view.attributes.get("perm")
        if not isinstance(perm, tuple) or len(perm) != len(order):
            break
        order = tuple(axis for place in order if isinstance(axis := perm[place], int))
        tensor = view.inputs[0]
    return tensor, order


def _same_numbers(editor: GraphEditor, tensor: int) -> int:
    """The tensor behind views that only add, drop and move dimensions of one element."""
    while (view := editor.writer_of_kind(tensor, OpKind.VIEW)) is not None:
        before, after = (editor.tensors[index].shape for index in (view.inputs[0], tensor))
        function, perm = view.attributes.get("function"), view.attributes.get("perm")
        if function == "transpose" and isinstance(perm, tuple):
            moved = [axis for axis in perm if isinstance(axis, int) and before[axis] != Dim(0, 1)]
            is_same = moved == sorted(moved)
        else:
            is_same = function == "reshape" and _without_ones(before) == _without_ones(after)
        if not is_same:
            break
        tensor = view.inputs[0]
    return tensor


def _without_ones(shape: Shape) -> Shape:
    return tuple(dim for dim in shape if dim != Dim(0, 1))


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
    is_subtracted = tensor == last.inputs[1]
    source, order = _before_transposes(editor, tensor)
    if order == tuple(range(len(order))):
        # Without a shift there may be nothing left between a transposition and the one back.
        tensor = source
    if last.kind is OpKind.SUB:
        return is_subtracted and _is_moved_mean(editor, tensor, mean, factor) == 1, None
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
    other = _same_numbers(editor, product.inputs[1] if product.inputs[0] == factor else product.inputs[0])
    if other == mean:
        return 1
    negated = editor.writer_of_kind(other, OpKind.UNARY, "neg")
    return -1 if negated is not None and _same_numbers(editor, negated.inputs[0]) == mean else 0


def _is_over_features(shape: Shape, axes: Axes) -> bool:
    return axes == tuple(range(len(shape) - len(axes), len(shape))) or axes == (1,)


def _is_over_groups(shape: Shape, axes: Axes) -> bool:
    return len(shape) > 2 and axes == (*range(1, len(shape) - 2), len(shape) - 1)


def _cover(editor: GraphEditor, factor: _Factor, beta: int | None, shape: Shape, axes: Axes) -> bool:
    """Whether scale and shift have one number for each element of some dimensions of what is normalized."""
    if factor.gamma is not None:
        # Here the dimensions stand as they stood before the factor was transposed.
        before = [shape[factor.perm.index(place)] for place in range(len(shape))]
        scaled = tuple(factor.perm[axis] for axis in axes)
        if not _covers(editor.tensors[factor.gamma].shape, before, scaled):
            return False
    return beta is None or _covers(editor.tensors[beta].shape, shape, axes)


def _covers(weight: Shape, shape: Sequence[Dim], axes: Axes) -> bool:
    wanted = [dim if axis in axes else Dim(0, 1) for axis, dim in enumerate(shape)]
    missing = len(wanted) - len(weight)
    return missing >= 0 and (*[Dim(0, 1)] * missing, *weight) == tuple(wanted)


def _put_layer_norm(editor: GraphEditor, position: int, last: Node, inputs: Inputs, axes: Axes) -> None:
    shape = editor.tensors[inputs[0]].shape
    attributes: dict[str, Attribute] = {"axes_size": prod(shape[axis].fixed for axis in axes)}
    rank = len(shape)
    perm = tuple(range(rank)) if axes[-1] == rank - 1 else (0, *range(2, rank), 1)
    _put(editor, position, last, OpKind.LAYER_NORM, inputs, perm, attributes)


def _put_group_norm(editor: GraphEditor, last: Node, inputs: Inputs) -> None:
    """Before the view that splits the channels; what reads the result must be a view that joins them again."""
    split, *weights = inputs
    view = editor.writer_of_kind(split, OpKind.VIEW, "reshape")
    reader = editor.only_reader(last.outputs[0])
    if view is None or reader < 0 or editor.node(reader).kind is not OpKind.VIEW:
        return
    x, joined = view.inputs[0], editor.node(reader).outputs[0]
    shape, grouped = editor.tensors[x].shape, editor.tensors[split].shape
    if editor.tensors[joined].shape != shape or shape[:-1] != grouped[:-2]:
        return
    groups, size = grouped[-2].fixed, grouped[-1].fixed * prod(dim.fixed for dim in shape[1:-1])
    attributes: dict[str, Attribute] = {"groups": groups, "axes_size": size}
    perm = (0, len(shape) - 1, *range(1, len(shape) - 1))
    _put(editor, reader, editor.node(reader), OpKind.GROUP_NORM, (x, *weights), perm, attributes)


def _put(
    editor: GraphEditor,
    position: int,
    last: Node,
    kind: OpKind,
    inputs: Inputs,
    perm: Axes,
    attributes: Mapping[str, Attribute],
) -> None:
    """A norm of a transposition in a node's place, transposed back; the parts go with the unused nodes."""
    make = partial(editor.make_node, kind, like=last, source_op=kind.value, attributes=attributes)
    if perm == tuple(range(len(perm))):
        editor.replace(position, make(inputs, last.outputs))
        return
    x, *weights = inputs
    tensor = editor.tensors[x]
    shape = tuple(tensor.shape[axis] for axis in perm)
    moved, normalized = (editor.add_tensor(tensor.name, shape, tensor.dtype) for _ in range(2))
    editor.insert_before(position, _transpose(editor, last, x, (moved,), perm))
    editor.insert_before(position, make((moved, *weights), (normalized,)))
    back = tuple(perm.index(axis) for axis in range(len(perm)))
    editor.replace(position, _transpose(editor, last, normalized, last.outputs, back))


def _transpose(editor: GraphEditor, like: Node, source: int, outputs: Inputs, perm: Axes) -> Node:
    attributes: dict[str, Attribute] = {"function": "transpose", "perm": perm}
    return editor.make_node(OpKind.VIEW, (source,), outputs, like=like, source_op="transpose", attributes=attributes)
