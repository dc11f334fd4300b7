"""Hard sigmoid and hard swish, which Keras writes as a sum, a limit and a quotient."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute, Node
from dippm.graph.op_kind import OpKind
from dippm.graph.passes.written_numbers import is_about

__all__ = ["fuse_hard_gates"]

_SHIFT, _LIMIT = 3.0, 6.0


def fuse_hard_gates(editor: GraphEditor) -> None:
    """Recognize ``min(max(x + 3, 0), 6) / 6``, and its product with x where both are transposed alike."""
    for position, node in enumerate(editor.nodes):
        if node is not None and _is_sixth(node):
            _fuse(editor, position, node)


def _is_sixth(node: Node) -> bool:
    scalar = node.attributes.get("scalar")
    if len(node.inputs) != 1 or not isinstance(scalar, float):
        return False
    if node.kind is OpKind.MUL:
        return is_about(scalar * _LIMIT, 1.0)
    return node.kind is OpKind.DIV and scalar == _LIMIT and not node.attributes.get("scalar_first", False)


def _fuse(editor: GraphEditor, position: int, scaled: Node) -> None:
    source = scaled.inputs[0]
    view = editor.writer_of_kind(source, OpKind.VIEW, "transpose")
    limited = source if view is None else view.inputs[0]
    clip, clip_position = editor.writer_of_kind(limited, OpKind.CLIP), editor.writer(limited)
    total = None if clip is None else editor.writer_of_kind(clip.inputs[0], OpKind.ADD)
    if clip is None or total is None or len(total.inputs) != 1 or total.attributes.get("scalar") != _SHIFT:
        return
    bounds = (clip.attributes.get("min"), clip.attributes.get("max"))
    if bounds != (0.0, _LIMIT) or -1 in {editor.only_reader(tensor) for tensor in (source, limited, clip.inputs[0])}:
        return
    x = total.inputs[0]
    editor.remove(editor.writer(clip.inputs[0]))
    editor.replace(
        clip_position, editor.make_node(OpKind.HARD_SIGMOID, (x,), clip.outputs, like=clip, source_op="hard_sigmoid")
    )
    editor.substitute(scaled.outputs[0], source)
    editor.remove(position)
    if view is not None:
        _gate(editor, x, source, view)


def _gate(editor: GraphEditor, x: int, gate: int, view: Node) -> None:
    """Put the product of x and its gate before their transposition."""
    reader = editor.only_reader(gate)
    product = editor.node(reader) if reader >= 0 else None
    if product is None or product.kind is not OpKind.MUL or len(product.inputs) != 2:
        return
    other = product.inputs[0] if product.inputs[1] == gate else product.inputs[1]
    first = editor.writer_of_kind(other, OpKind.VIEW, "transpose")
    if first is None or first.inputs != (x,) or first.attributes.get("perm") != view.attributes.get("perm"):
        return
    spec = editor.tensors[x]
    swished = editor.add_tensor(spec.name, spec.shape, spec.dtype)
    editor.insert_before(
        reader, editor.make_node(OpKind.HARD_SWISH, (x,), (swished,), like=product, source_op="hard_swish")
    )
    attributes: dict[str, Attribute] = dict(view.attributes)
    editor.replace(reader, editor.make_node(OpKind.VIEW, (swished,), product.outputs, like=view, attributes=attributes))
