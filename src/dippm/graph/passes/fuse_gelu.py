"""GELU put together again from the parts that exporters take it apart into."""

from __future__ import annotations

from math import pi, sqrt

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Node
from dippm.graph.op_kind import OpKind
from dippm.graph.passes.written_numbers import is_about

__all__ = ["fuse_converted_gelu", "fuse_gelu"]

_CUBIC = 0.044715


def fuse_gelu(editor: GraphEditor) -> None:
    """Recognize ``x / 2 (1 + erf(x / sqrt 2))`` and its approximation by tanh.

    The factor 1/2 may stand anywhere in the product. The approximation with the factor on ``x`` itself is left as it
    is: exporters never write it so, but models that spell GELU out in Python do, and eager PyTorch then launches every
    part of it.
    """
    _fuse_all(editor, may_halve_x=False)


def fuse_converted_gelu(editor: GraphEditor) -> None:
    """The same, and the approximation with the factor on ``x`` too: TensorFlow's own function writes it so."""
    _fuse_all(editor, may_halve_x=True)


def _fuse_all(editor: GraphEditor, *, may_halve_x: bool) -> None:
    for position, node in enumerate(editor.nodes):
        if node is None:
            continue
        if node.kind is OpKind.UNARY and node.attributes.get("function") == "erf":
            _fuse(editor, position, node, _erf_argument(editor, node), is_tanh=False, may_halve_x=True)
        elif node.kind is OpKind.TANH:
            _fuse(editor, position, node, _tanh_argument(editor, node), is_tanh=True, may_halve_x=may_halve_x)


def _fuse(editor: GraphEditor, position: int, core: Node, x: int | None, *, is_tanh: bool, may_halve_x: bool) -> None:
    if x is None:
        return
    removed = [position]
    reader = editor.only_reader(core.outputs[0])
    if reader < 0 or not _has_scalar(editor.node(reader), OpKind.ADD, 1.0):
        return
    removed.append(reader)
    current = editor.node(reader).outputs[0]
    has_x = has_half = False
    while not (has_x and has_half):
        reader = editor.only_reader(current)
        if reader < 0:
            return
        node = editor.node(reader)
        if not has_half and (_has_scalar(node, OpKind.MUL, 0.5) or _has_scalar(node, OpKind.DIV, 2.0)):
            has_half = True
        elif not has_x and node.kind is OpKind.MUL and len(node.inputs) == 2:
            other = node.inputs[1] if node.inputs[0] == current else node.inputs[0]
            half = editor.writer_of_kind(other, OpKind.MUL) or editor.writer_of_kind(other, OpKind.DIV)
            if other == x:
                has_x = True
            elif half is not None and half.inputs == (x,) and may_halve_x and not has_half:
                has_x = has_half = _has_scalar(half, OpKind.MUL, 0.5) or _has_scalar(half, OpKind.DIV, 2.0)
                if not has_x:
                    return
            else:
                return
        else:
            return
        removed.append(reader)
        current = node.outputs[0]
    last = removed.pop()
    for number in removed:
        editor.remove(number)
    like = editor.node(last)
    attributes = {"approximate": "tanh" if is_tanh else "none"}
    editor.replace(
        last, editor.make_node(OpKind.GELU, (x,), like.outputs, like=like, source_op="Gelu", attributes=attributes)
    )


def _erf_argument(editor: GraphEditor, node: Node) -> int | None:
    for kind, scalar in ((OpKind.DIV, sqrt(2)), (OpKind.MUL, sqrt(0.5))):
        scaled = editor.writer_of_kind(node.inputs[0], kind)
        if scaled is not None and _has_scalar(scaled, kind, scalar):
            return scaled.inputs[0]
    return None


def _tanh_argument(editor: GraphEditor, node: Node) -> int | None:
    """X of ``tanh(sqrt(2 / pi) (x + 0.044715 x^3))``."""
    scaled = editor.writer_of_kind(node.inputs[0], OpKind.MUL)
    if scaled is None or not _has_scalar(scaled, OpKind.MUL, sqrt(2 / pi)):
        return None
    total = editor.writer_of_kind(scaled.inputs[0], OpKind.ADD)
    if total is None or len(total.inputs) != 2:
        return None
    for x, cubic in (total.inputs, total.inputs[::-1]):
        term = editor.writer_of_kind(cubic, OpKind.MUL)
        if term is not None and _has_scalar(term, OpKind.MUL, _CUBIC) and _is_cube(editor, term.inputs[0], x):
            return x
    return None


def _is_cube(editor: GraphEditor, tensor: int, x: int) -> bool:
    power = editor.writer_of_kind(tensor, OpKind.POW)
    if power is not None:
        return power.inputs == (x,) and _has_scalar(power, OpKind.POW, 3.0)
    product = editor.writer_of_kind(tensor, OpKind.MUL)
    if product is None or len(product.inputs) != 2 or x not in product.inputs:
        return False
    square = product.inputs[1] if product.inputs[0] == x else product.inputs[0]
    inner = editor.writer_of_kind(square, OpKind.MUL)
    return inner is not None and inner.inputs == (x, x)


def _has_scalar(node: Node, kind: OpKind, value: float) -> bool:
    scalar = node.attributes.get("scalar")
    is_number = isinstance(scalar, float) and is_about(scalar, value)
    return (node.kind is kind and is_number and not node.attributes.get("scalar_first", False)) or (
        node.kind is kind and is_number and kind in (OpKind.ADD, OpKind.MUL)
    )
