"""An unbind, which exporters write as single slices and a squeeze of each."""

from __future__ import annotations

from collections.abc import Sequence

from dippm.graph.dim import changed_axis
from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_unbind"]


def fuse_unbind(editor: GraphEditor) -> None:
    """Let one view make the squeezed slices, where nothing else reads the slices."""
    seen: set[int] = set()
    for position, node in enumerate(editor.nodes):
        if node is None or node.kind is not OpKind.VIEW:
            continue
        function, axis = node.attributes.get("function"), node.attributes.get("axis")
        source = node.inputs[0]
        if function == "split" and isinstance(axis, int):
            _fuse(editor, [position], node.outputs, axis)
        elif function == "slice" and source not in seen:
            seen.add(source)
            siblings = [
                reader
                for reader in editor.readers(source)
                if reader >= 0
                and (other := editor.node(reader)).attributes.get("function") == "slice"
                and editor.tensors[other.outputs[0]].shape == editor.tensors[node.outputs[0]].shape
            ]
            found = _sliced_axis(editor, source, node.outputs[0], len(siblings))
            if found is not None:
                _fuse(editor, siblings, [editor.node(sibling).outputs[0] for sibling in siblings], found)


def _sliced_axis(editor: GraphEditor, source: int, piece: int, count: int) -> int | None:
    """The axis along which ``count`` pieces of size 1 make up the whole."""
    whole, part = editor.tensors[source].shape, editor.tensors[piece].shape
    cut = changed_axis(whole, part)
    return cut if cut is not None and part[cut] == (0, 1) and whole[cut] == (0, count) else None


def _fuse(editor: GraphEditor, positions: Sequence[int], pieces: Sequence[int], axis: int) -> None:
    node = editor.node(positions[0])
    shape = editor.tensors[node.inputs[0]].shape
    squeezed = (*shape[:axis], *shape[axis + 1 :])
    outputs = []
    readers = [editor.only_reader(piece) for piece in pieces]
    for reader in readers:
        squeeze = editor.node(reader) if reader >= 0 else None
        if squeeze is None or squeeze.kind is not OpKind.VIEW or squeeze.attributes.get("function") != "reshape":
            return
        if editor.tensors[squeeze.outputs[0]].shape != squeezed:
            return
        outputs.append(squeeze.outputs[0])
    for position in (*readers, *positions[1:]):
        editor.remove(position)
    attributes: dict[str, Attribute] = {"function": "unbind", "axis": axis}
    unbound = editor.make_node(OpKind.VIEW, node.inputs, outputs, like=node, source_op="unbind", attributes=attributes)
    editor.replace(positions[0], unbound)
