"""Layer normalization and its root-mean-square kin put together again from reductions and arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Node
from dippm.graph.op_kind import OpKind

__all__ = ["WrittenNorms", "fuse_layer_norm"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenNorms:
    """Which norms that stand written out were one operator of the framework; the others its code writes out itself.

    Args:
        are_layer_norms: Whether layer norms were.
        rms_sums: Names of the sums ``mean(x^2) + eps`` of those RMS norms that were; None where all were.
    """

    are_layer_norms: bool = True
    rms_sums: frozenset[str] | None = None


def fuse_layer_norm(editor: GraphEditor, written: WrittenNorms | None = None) -> None:
    """Recognize ``(x - mean) / sqrt(mean((x - mean)^2) + eps) * scale + bias`` over the last dimensions.

    Normalization over other dimensions than the last is left as it is, for PyTorch has no kernel for it.

    Args:
        editor: The graph.
        written: Which were one operator; None where all were.
    """
    written = written or WrittenNorms()
    for node in editor.nodes:
        if node is not None and node.kind is OpKind.UNARY and node.attributes.get("function") == "sqrt":
            _fuse(editor, node, written)


def _fuse(editor: GraphEditor, root: Node, written: WrittenNorms) -> None:
    shifted = editor.writer_of_kind(root.inputs[0], OpKind.ADD)
    if shifted is None or len(shifted.inputs) != 1 or "scalar" not in shifted.attributes:
        return
    variance = editor.writer_of_kind(shifted.inputs[0], OpKind.REDUCE, "mean")
    axes = None if variance is None else _trailing_axes(editor, variance)
    if variance is None or axes is None:
        return
    centred = _squared(editor, variance.inputs[0])
    if centred is None:
        return
    x, is_centred = _before_centring(editor, centred, axes)
    is_rms_norm = written.rms_sums is None or editor.tensors[root.inputs[0]].name in written.rms_sums
    if not (written.are_layer_norms if is_centred else is_rms_norm):
        return
    division = _division(editor, root, centred, x if is_centred else None)
    if division is None:
        return
    last, output = division
    inputs = [x]
    scaled = _affine(editor, output, OpKind.MUL, x, axes)
    if scaled is not None:
        last, weight, output = scaled
        inputs.append(weight)
        moved = _affine(editor, output, OpKind.ADD, x, axes) if is_centred else None
        if moved is not None:
            last, weight, output = moved
            inputs.append(weight)
    size = 1
    for axis in axes:
        size *= editor.tensors[x].shape[axis].fixed
    kind = OpKind.LAYER_NORM if is_centred else OpKind.RMS_NORM
    like = editor.node(last)
    # The parts in between lose their reader and go with the unused nodes.
    editor.replace(
        last,
        editor.make_node(kind, inputs, like.outputs, like=like, source_op=kind.value, attributes={"axes_size": size}),
    )


def _trailing_axes(editor: GraphEditor, node: Node) -> tuple[int, ...] | None:
    axes = node.attributes.get("axes")
    shape = editor.tensors[node.inputs[0]].shape
    if not isinstance(axes, tuple) or not axes or axes != tuple(range(len(shape) - len(axes), len(shape))):
        return None
    return axes if all(shape[axis].per_sample == 0 for axis in axes) else None


def _squared(editor: GraphEditor, tensor: int) -> int | None:
    power = editor.writer_of_kind(tensor, OpKind.POW)
    if power is not None and power.attributes.get("scalar") == 2.0 and len(power.inputs) == 1:
        return power.inputs[0]
    product = editor.writer_of_kind(tensor, OpKind.MUL)
    if product is not None and len(product.inputs) == 2 and product.inputs[0] == product.inputs[1]:
        return product.inputs[0]
    return None


def _before_centring(editor: GraphEditor, tensor: int, axes: tuple[int, ...]) -> tuple[int, bool]:
    node = editor.writer_of_kind(tensor, OpKind.SUB)
    if node is not None and len(node.inputs) == 2:
        mean = editor.writer_of_kind(node.inputs[1], OpKind.REDUCE, "mean")
        if mean is not None and mean.inputs[0] == node.inputs[0] and mean.attributes.get("axes") == axes:
            return node.inputs[0], True
    return tensor, False


def _division(editor: GraphEditor, root: Node, centred: int, x: int | None) -> tuple[int, int] | None:
    """Where the deviation divides and the result, None where it does not."""
    divisor, kind = root.outputs[0], OpKind.DIV
    reader = editor.only_reader(divisor)
    if reader >= 0 and _is_reciprocal(editor.node(reader)):
        divisor, kind = editor.node(reader).outputs[0], OpKind.MUL
        reader = editor.only_reader(divisor)
    node = editor.node(reader) if reader >= 0 else None
    if node is None or node.kind is not kind or len(node.inputs) != 2:
        return None
    divided = node.inputs[0] if node.inputs[1] == divisor else node.inputs[1]
    if kind is OpKind.DIV and node.inputs[1] != divisor:
        return None
    # Some exporters write the centring twice.
    again = editor.writer_of_kind(divided, OpKind.SUB)
    is_same = divided == centred or (x is not None and again is not None and again.inputs[0] == x)
    return (reader, node.outputs[0]) if is_same else None


def _is_reciprocal(node: Node) -> bool:
    if node.kind is OpKind.UNARY:
        return node.attributes.get("function") == "reciprocal"
    is_first = bool(node.attributes.get("scalar_first", False))
    return node.kind is OpKind.DIV and is_first and node.attributes.get("scalar") == 1.0


def _affine(
    editor: GraphEditor, tensor: int, kind: OpKind, x: int, axes: tuple[int, ...]
) -> tuple[int, int, int] | None:
    """The learned scale or shift that follows: position, weight, result."""
    reader = editor.only_reader(tensor)
    if reader < 0:
        return None
    node = editor.node(reader)
    if node.kind is not kind or len(node.inputs) != 2:
        return None
    weight = node.inputs[0] if node.inputs[1] == tensor else node.inputs[1]
    shape = editor.tensors[x].shape
    if not editor.is_stored(weight) or editor.tensors[weight].shape != tuple(shape[axis] for axis in axes):
        return None
    return reader, weight, node.outputs[0]
