"""Recurrent layers one above the other, which converters write one by one."""

from __future__ import annotations

from collections.abc import Sequence

from dippm.graph.dim import Dim, Shape
from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute, Node
from dippm.graph.op_kind import RECURRENT_KINDS, OpKind

__all__ = ["stack_recurrent_layers"]

_SAME = ("hidden_size", "num_directions", "batch_first")
_STATES = {OpKind.LSTM: 2}
_REARRANGING = ("transpose", "reshape")


def stack_recurrent_layers(editor: GraphEditor, *, is_per_module: bool = False) -> None:
    """Let one node run the layers that feed each other and start from zeros, as one module of PyTorch does.

    Args:
        editor: The graph.
        is_per_module: Whether only layers go together that the graph says are of one module.
    """
    for top in reversed(range(len(editor.nodes))):
        layers = [top]
        while (below := _layer_below(editor, layers[-1], top, is_per_module=is_per_module)) >= 0:
            layers.append(below)
        if len(layers) > 1:
            _merge(editor, layers[::-1])


def _layer_below(editor: GraphEditor, position: int, top: int, *, is_per_module: bool) -> int:
    """Position of the layer whose whole sequence is this one's input and nobody else's; -1 where there is none."""
    node = editor.nodes[position]
    if node is None or node.kind not in RECURRENT_KINDS or not _is_single(editor, node, top):
        return -1
    tensor, reader = node.inputs[0], position
    while editor.only_reader(tensor) == reader:
        writer = editor.writer(tensor)
        if writer < 0:
            return -1
        source = editor.node(writer)
        if source.kind is node.kind and tensor == source.outputs[0]:
            is_alike = all(source.attributes.get(name) == node.attributes.get(name) for name in _SAME)
            is_whole = _sequence(editor, source) == editor.tensors[node.inputs[0]].shape
            if is_per_module and not _is_of_one_module(editor, node, source):
                return -1
            return writer if is_alike and is_whole and _is_single(editor, source, top) else -1
        if source.kind is not OpKind.VIEW or source.attributes.get("function") not in _REARRANGING:
            return -1
        tensor, reader = source.inputs[0], writer
    return -1


def _is_of_one_module(editor: GraphEditor, first: Node, second: Node) -> bool:
    """Whether two nodes carry one module's path and are not calls of the same layer."""
    weights = ({index for index in node.inputs if index >= 0 and editor.is_stored(index)} for node in (first, second))
    return first.scope != "" and first.scope == second.scope and set.isdisjoint(*weights)


def _sequence(editor: GraphEditor, node: Node) -> Shape | None:
    """A layer's result with its directions side by side, as the layer above reads it."""
    shape = editor.tensors[node.outputs[0]].shape
    if len(shape) != 4:
        return None
    first, second, third, hidden = shape
    if node.attributes.get("batch_first", False):
        return first, second, Dim(0, third.fixed * hidden.fixed)
    return first, third, Dim(0, second.fixed * hidden.fixed)


def _is_single(editor: GraphEditor, node: Node, top: int) -> bool:
    """Whether a node is one layer that starts from zeros, its last states read after all layers have run, if at all."""
    starts_from_zeros = all(editor.writer_of_kind(index, OpKind.FILL) is not None for index in _states(editor, node))
    readers = [reader for output in node.outputs[1:] for reader in editor.readers(output)]
    # The graph may return the last states of the upper layer: it then returns those of all.
    are_late = all(reader > top or (reader == -1 and node is editor.nodes[top]) for reader in readers)
    return node.attributes.get("num_layers") == 1 and starts_from_zeros and are_late


def _states(editor: GraphEditor, node: Node) -> tuple[int, ...]:
    """The inputs that are initial states."""
    shape = editor.tensors[node.outputs[1]].shape
    candidates = node.inputs[1 : 1 + _STATES.get(node.kind, 1)]
    return tuple(index for index in candidates if editor.tensors[index].shape == shape and not editor.is_stored(index))


def _merge(editor: GraphEditor, layers: Sequence[int]) -> None:
    """Put all layers, the lowest first, in the place of the last one."""
    nodes = [editor.node(position) for position in layers]
    bottom, top, position = nodes[0], nodes[-1], layers[-1]
    states = [_states(editor, node) for node in nodes]
    directions, *rest = editor.tensors[top.outputs[1]].shape
    shape = (Dim(0, directions.fixed * len(nodes)), *rest)
    inputs = [bottom.inputs[0]]
    inputs += [_zeros(editor, position, state, shape) for state in max(states, key=len)]
    for node, own in zip(nodes, states, strict=True):
        inputs += [index for index in node.inputs[1:] if index not in own]
    outputs = [top.outputs[0]]
    outputs += [
        _joined_state(editor, parts, shape, top) for parts in zip(*(node.outputs[1:] for node in nodes), strict=True)
    ]
    attributes: dict[str, Attribute] = {**top.attributes, "num_layers": len(nodes)}
    for lower in layers[:-1]:
        editor.remove(lower)
    editor.replace(position, editor.make_node(top.kind, inputs, outputs, like=top, attributes=attributes))


def _zeros(editor: GraphEditor, position: int, state: int, shape: Shape) -> int:
    """The initial states of all layers, made as those of one layer are."""
    fill = editor.node(editor.writer(state))
    tensor = editor.add_tensor(editor.tensors[state].name, shape, editor.tensors[state].dtype)
    made = editor.make_node(OpKind.FILL, (), (tensor,), like=fill, attributes=fill.attributes)
    editor.insert_before(position, made)
    return tensor


def _joined_state(editor: GraphEditor, parts: Sequence[int], shape: Shape, like: Node) -> int:
    """The last states of all layers; what read that of one layer reads a slice of it."""
    whole = editor.add_tensor(editor.tensors[parts[0]].name, shape, editor.tensors[parts[0]].dtype)
    for part in parts:
        if part in editor.outputs:
            editor.outputs = [whole if index == part else index for index in editor.outputs]
        readers = [reader for reader in editor.readers(part) if reader >= 0]
        if readers:
            attributes: dict[str, Attribute] = {"function": "slice"}
            view = editor.make_node(OpKind.VIEW, (whole,), (part,), like=like, source_op="slice", attributes=attributes)
            editor.insert_before(readers[0], view)
    return whole
