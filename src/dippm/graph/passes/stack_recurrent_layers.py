"""Recurrent layers one above the other, which converters write one by one."""

from __future__ import annotations

from collections.abc import Sequence

from dippm.graph.dim import Dim, Shape
from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute, Node, TensorRole
from dippm.graph.op_kind import RECURRENT_KINDS, OpKind
from dippm.graph.passes.arrangement import Arrangement
from dippm.graph.passes.gather_recurrent_weights import stored_behind

__all__ = ["stack_recurrent_layers"]

_SAME = ("hidden_size", "num_directions", "batch_first", "is_reversed", "variant")
_STATES = {OpKind.LSTM: 2}


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
    views: list[Node] = []
    while editor.only_reader(tensor) == reader:
        writer = editor.writer(tensor)
        if writer < 0:
            return -1
        source = editor.node(writer)
        if source.kind is node.kind and tensor == source.outputs[0]:
            is_alike = all(source.attributes.get(name) == node.attributes.get(name) for name in _SAME)
            if is_per_module and (source.scope == "" or source.scope != node.scope):
                return -1
            is_fed = is_alike and _is_sequence(editor, source, views[::-1])
            are_apart = _weights(editor, node).isdisjoint(_weights(editor, source))
            return writer if is_fed and are_apart and _is_single(editor, source, top) else -1
        if source.kind is not OpKind.VIEW:
            return -1
        views.append(source)
        tensor, reader = source.inputs[0], writer
    return -1


def _weights(editor: GraphEditor, node: Node) -> set[int]:
    """The tensors that a layer was trained to: layers that share them are one layer, called again."""
    found: set[int] = set()
    for tensor in node.inputs[1:]:
        if tensor >= 0:
            found.update(stored_behind(editor, tensor))
    return found


def _is_sequence(editor: GraphEditor, node: Node, views: Sequence[Node]) -> bool:
    """Whether views make of a layer's result the sequence that the layer above reads, its directions side by side."""
    shape = editor.tensors[node.outputs[0]].shape
    if len(shape) != 4:
        return False
    arrangement = Arrangement(shape)
    if not all(arrangement.follow(view, editor.tensors[view.outputs[0]].shape) for view in views):
        return False
    is_batch_first = node.attributes.get("batch_first", False)
    return arrangement.is_order(((0,), (1,), (2, 3)) if is_batch_first else ((0,), (2,), (1, 3)))


def _is_single(editor: GraphEditor, node: Node, top: int) -> bool:
    """Whether a node is one layer that starts from zeros, its last states read after all layers have run, if at all."""
    starts_from_zeros = all(_is_zeros(editor, index) for index in _given_states(editor, node))
    readers = [reader for output in node.outputs[1:] for reader in editor.readers(output)]
    # The graph may return the last states of the upper layer: it then returns those of all.
    are_late = all(reader > top or (reader == -1 and node is editor.nodes[top]) for reader in readers)
    return node.attributes.get("num_layers") == 1 and starts_from_zeros and are_late


def _is_zeros(editor: GraphEditor, state: int) -> bool:
    is_written = editor.tensors[state].role is TensorRole.CONSTANT
    return is_written or editor.writer_of_kind(state, OpKind.FILL) is not None


def _given_states(editor: GraphEditor, node: Node) -> tuple[int, ...]:
    """The inputs that are initial states."""
    shape = editor.tensors[node.outputs[1]].shape
    candidates = node.inputs[1 : 1 + _STATES.get(node.kind, 1)]
    return tuple(index for index in candidates if index >= 0 and editor.tensors[index].shape == shape)


def _states(editor: GraphEditor, node: Node) -> tuple[int, ...]:
    """The initial states that are made as the model runs."""
    return tuple(index for index in _given_states(editor, node) if not editor.is_stored(index))


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
