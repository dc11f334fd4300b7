"""A roll, which exporters write as two slices joined the other way round, once for each dimension."""

from __future__ import annotations

from dippm.graph.editor import GraphEditor
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_roll"]

_ROLL = "roll"


def fuse_roll(editor: GraphEditor) -> None:
    """Turn a concatenation of two slices of one tensor, of its own shape again, into one copy, and so several of them.

    A roll over two dimensions is one operator in PyTorch, as it is one here.
    """
    for position, node in enumerate(editor.nodes):
        if node is None or node.kind is not OpKind.CONCAT or len(node.inputs) != 2:
            continue
        pieces = [editor.writer_of_kind(tensor, OpKind.VIEW, "slice") for tensor in node.inputs]
        if pieces[0] is None or pieces[1] is None or pieces[0].inputs != pieces[1].inputs:
            continue
        source = pieces[0].inputs[0]
        is_whole = editor.tensors[source].shape == editor.tensors[node.outputs[0]].shape
        is_whole = is_whole and all(editor.only_reader(tensor) == position for tensor in node.inputs)
        if is_whole:
            for tensor in set(node.inputs):
                editor.remove(editor.writer(tensor))
            earlier = editor.writer_of_kind(source, OpKind.COPY, _ROLL)
            # The slices are gone: who still reads the source needs what the roll before this one wrote.
            if earlier is not None and not editor.readers(source):
                editor.remove(editor.writer(source))
                source = earlier.inputs[0]
            roll = editor.make_node(
                OpKind.COPY, (source,), node.outputs, like=node, source_op=_ROLL, attributes={"function": _ROLL}
            )
            editor.replace(position, roll)
