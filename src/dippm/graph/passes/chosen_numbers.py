"""Numbers kept where a mask says yes, and another number where it says no, which converters write as products."""

from __future__ import annotations

from dippm.graph.dtype import DType
from dippm.graph.editor import GraphEditor
from dippm.graph.op_kind import OpKind

__all__ = ["chosen_numbers"]


def chosen_numbers(editor: GraphEditor, tensor: int) -> tuple[int, int, float] | None:
    """The numbers x, the mask m and the number y of ``m x + (1 - m) y``; None where a tensor is no such choice."""
    total = editor.writer_of_kind(tensor, OpKind.ADD)
    if total is None or len(total.inputs) != 2:
        return None
    for kept, other in (total.inputs, total.inputs[::-1]):
        chosen, replacement = _times_mask(editor, kept), _number(editor, other)
        if chosen is not None and replacement is not None:
            return *chosen, replacement
    return None


def _times_mask(editor: GraphEditor, tensor: int) -> tuple[int, int] | None:
    """Numbers times a mask of yes and no as 1 and 0, and that mask."""
    node = editor.writer_of_kind(tensor, OpKind.MUL)
    if node is None or len(node.inputs) != 2 or editor.only_reader(tensor) < 0:
        return None
    for numbers, factor in (node.inputs, node.inputs[::-1]):
        mask = _boolean(editor, factor)
        if mask is not None and _boolean(editor, numbers) is None:
            return numbers, _without_spread(editor, mask)
    return None


def _number(editor: GraphEditor, tensor: int) -> float | None:
    """The number that a tensor is where a mask says no, if it is 0 elsewhere."""
    node = editor.writer_of_kind(tensor, OpKind.MUL)
    number = None if node is None else node.attributes.get("scalar")
    is_choice = node is not None and _boolean(editor, node.inputs[0]) is not None
    return number if is_choice and isinstance(number, float) else None


def _boolean(editor: GraphEditor, tensor: int) -> int | None:
    """The tensor of yes and no of which one is the numbers."""
    cast = editor.writer_of_kind(tensor, OpKind.CAST)
    return cast.inputs[0] if cast is not None and editor.tensors[cast.inputs[0]].dtype is DType.BOOL else None


def _without_spread(editor: GraphEditor, mask: int) -> int:
    """The mask as it was before it was spread over all scores, which converters do by ``and`` with as many ones."""
    node = editor.writer_of_kind(mask, OpKind.BINARY, "logical_and")
    if node is None or len(node.inputs) != 2:
        return mask
    for filled, other in (node.inputs, node.inputs[::-1]):
        is_smaller = editor.tensors[other].shape != editor.tensors[mask].shape
        if is_smaller and editor.writer_of_kind(filled, OpKind.FILL) is not None:
            return other
    return mask
