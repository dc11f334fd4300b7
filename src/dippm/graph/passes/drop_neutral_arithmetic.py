"""Additions of 0 and multiplications by 1, which converters write for operators with a scale or an offset left out."""

from __future__ import annotations

from dataclasses import replace

from dippm.graph.editor import GraphEditor
from dippm.graph.op_kind import OpKind

__all__ = ["drop_neutral_arithmetic"]

_NEUTRAL = {OpKind.ADD: 0.0, OpKind.SUB: 0.0, OpKind.MUL: 1.0, OpKind.DIV: 1.0}


def drop_neutral_arithmetic(editor: GraphEditor) -> None:
    """Let the readers of ``x + 0`` and ``1 x`` read ``x``, where shape and type are those of ``x``."""
    for position, node in enumerate(editor.nodes):
        if node is None or len(node.inputs) != 1 or node.attributes.get("scalar") != _NEUTRAL.get(node.kind, ()):
            continue
        is_swapped = bool(node.attributes.get("scalar_first", False)) and node.kind in (OpKind.SUB, OpKind.DIV)
        source, result = node.inputs[0], node.outputs[0]
        before, after = editor.tensors[source], editor.tensors[result]
        if is_swapped or (before.shape, before.dtype) != (after.shape, after.dtype) or result in editor.outputs:
            continue
        for reader in editor.readers(result):
            other = editor.node(reader)
            inputs = tuple(source if index == result else index for index in other.inputs)
            editor.replace(reader, replace(other, inputs=inputs))
        editor.remove(position)
