"""Variances and standard deviations, for which ONNX has no operator, put together again from their means."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Node
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_variance"]


def fuse_variance(editor: GraphEditor) -> None:
    """Recognize ``mean((x - mean(x))^2)``, what corrects it for the sample's size, and the root of it.

    The differences must have no other use: a norm that a model writes out itself divides them.
    """
    for position, node in enumerate(editor.nodes):
        if node is not None and node.kind is OpKind.REDUCE and node.attributes.get("function") == "mean":
            _fuse(editor, position, node)


def _fuse(editor: GraphEditor, position: int, mean: Node) -> None:
    x = _source(editor, mean)
    if x is None:
        return
    product = _next(editor, position, OpKind.MUL)
    quotient = _next(editor, product, OpKind.DIV) if product >= 0 else -1
    position = quotient if quotient >= 0 else position
    root = _next(editor, position, OpKind.UNARY, "sqrt")
    position, function = (root, "std") if root >= 0 else (position, "var")
    last = editor.node(position)
    attributes = {"function": function, "axes": mean.attributes["axes"]}
    # The parts in between lose their reader and go with the unused nodes.
    editor.replace(
        position,
        editor.make_node(OpKind.REDUCE, (x,), last.outputs, like=last, source_op=function, attributes=attributes),
    )


def _next(editor: GraphEditor, position: int, kind: OpKind, function: str = "") -> int:
    """What alone reads a result, if it is of that kind: by a number, or of that function; -1 where it is not."""
    reader = editor.only_reader(editor.node(position).outputs[0])
    if reader < 0 or editor.node(reader).kind is not kind or len(editor.node(reader).inputs) != 1:
        return -1
    attributes = editor.node(reader).attributes
    is_next = attributes.get("function") == function if function else "scalar" in attributes
    return reader if is_next and not attributes.get("scalar_first") else -1


def _source(editor: GraphEditor, mean: Node) -> int | None:
    """What a mean is the variance of; None where it is something else."""
    square = editor.writer_of_kind(mean.inputs[0], OpKind.MUL)
    if square is None or len(square.inputs) != 2 or square.inputs[0] != square.inputs[1]:
        return None
    if editor.only_reader(mean.inputs[0]) < 0 or len(set(editor.readers(square.inputs[0]))) != 1:
        return None
    centred = editor.writer_of_kind(square.inputs[0], OpKind.SUB)
    if centred is None or len(centred.inputs) != 2:
        return None
    x, average = centred.inputs
    own = editor.writer_of_kind(average, OpKind.REDUCE, "mean")
    if own is None or own.inputs[0] != x or own.attributes.get("axes") != mean.attributes.get("axes"):
        return None
    return x if "axes" in mean.attributes else None
