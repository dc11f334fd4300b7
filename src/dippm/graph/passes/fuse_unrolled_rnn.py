"""Layers of ``nn.RNN``, which PyTorch's newer exporter writes step by step and cuDNN runs as one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dippm.graph.dim import Dim
from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Attribute, Node
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_unrolled_rnn"]

_ACTIVATIONS = {OpKind.TANH: "", OpKind.RELU: "Relu"}
_STEP_RANK = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class _Steps:
    """The steps of one direction: their states in the order they are computed, and the product behind each of them."""

    states: tuple[int, ...]
    products: tuple[int, ...]
    kind: OpKind
    weights: tuple[int, ...]


def fuse_unrolled_rnn(editor: GraphEditor) -> None:
    """Recognize ``h = tanh(x_t + h W + b)`` over all steps of a sequence that one product has projected before.

    Two directions over one sequence, side by side in the result, are one layer.
    """
    for position, node in enumerate(editor.nodes):
        if node is not None and node.kind is OpKind.VIEW and node.attributes.get("function") == "unbind":
            _fuse(editor, position, node)
    for position, node in enumerate(editor.nodes):
        if node is not None and node.kind is OpKind.CONCAT and len(node.inputs) == 2:
            _join_directions(editor, position, node)


def _fuse(editor: GraphEditor, position: int, unbind: Node) -> None:
    projected = unbind.inputs[0]
    flip = editor.writer_of_kind(projected, OpKind.COPY, "flip")
    if flip is not None and editor.only_reader(projected) == position:
        projected = flip.inputs[0]
    product = editor.writer_of_kind(projected, OpKind.LINEAR)
    is_alone = product is not None and editor.only_reader(projected) >= 0
    if product is None or not is_alone or unbind.attributes.get("axis") != 0 or len(unbind.outputs) < 2:
        return
    steps = _follow(editor, unbind.outputs)
    if steps is None:
        return
    states = steps.states[::-1] if flip is not None else steps.states
    joined = [reader for reader in editor.readers(states[0]) if reader >= 0 and _is_joining(editor, reader, states)]
    last = editor.writer(steps.states[-1])
    sequence = editor.node(joined[0]).outputs[0] if joined else -1
    if not _are_inner(editor, steps, {*joined[:1]}):
        return
    spec = editor.tensors[steps.states[-1]]
    if sequence < 0:
        length = Dim(0, len(states))
        sequence = editor.add_tensor(f"{spec.name}_sequence", (length, *spec.shape[1:]), spec.dtype)
    first = editor.writer_of_kind(steps.products[0], OpKind.LINEAR)
    start = first.inputs[0] if first is not None else editor.add_tensor(f"{spec.name}_start", spec.shape, spec.dtype)
    if first is None:  # the exporter has worked out the product of the zeros that the layer starts from
        zeros = editor.make_node(OpKind.FILL, (), (start,), like=unbind, attributes={"function": "zeros"})
        editor.replace(position, zeros)
    attributes: dict[str, Attribute] = {
        "hidden_size": spec.shape[-1].fixed,
        "num_layers": 1,
        "num_directions": 1,
        "batch_first": False,
    }
    if flip is not None:
        attributes["is_reversed"] = True
    if _ACTIVATIONS[steps.kind]:
        attributes["variant"] = _ACTIVATIONS[steps.kind]
    weights = [*product.inputs[1:2], steps.weights[0], *product.inputs[2:], *steps.weights[1:]]
    outputs = (sequence, steps.states[-1])
    layer = editor.make_node(
        OpKind.RNN, (product.inputs[0], start, *weights), outputs, like=unbind, source_op="rnn", attributes=attributes
    )
    if joined:
        editor.remove(joined[0])
    # The steps before lose their reader and go with the unused nodes.
    editor.replace(last, layer)


def _follow(editor: GraphEditor, pieces: tuple[int, ...]) -> _Steps | None:
    """The steps that read these pieces in turn, None where these are no such steps."""
    states: list[int] = []
    products: list[int] = []
    matrices: list[int] = []
    weights: tuple[int, ...] = ()
    kind = OpKind.TANH
    for piece in pieces:
        adding = editor.only_reader(piece)
        total = editor.node(adding) if adding >= 0 else None
        if total is None or total.kind is not OpKind.ADD or len(total.inputs) != 2:
            return None
        activating = editor.only_reader(total.outputs[0])
        activation = editor.node(activating) if activating >= 0 else None
        if activation is None or activation.kind not in _ACTIVATIONS:
            return None
        state = activation.outputs[0]
        product = total.inputs[0] if total.inputs[1] == piece else total.inputs[1]
        linear = editor.writer_of_kind(product, OpKind.LINEAR)
        if linear is None and (states or not editor.is_stored(product)):
            return None
        if linear is not None:
            if states and linear.inputs[0] != states[-1]:
                return None
            if weights and linear.inputs[2:] != weights[1:]:
                return None
            weights = weights or linear.inputs[1:]
            matrices.append(linear.inputs[1])
        if len(editor.tensors[state].shape) != _STEP_RANK or editor.tensors[state].shape[0] != Dim(0, 1):
            return None
        if states and activation.kind is not kind:
            return None
        kind = activation.kind
        states.append(state)
        products.append(product)
    if not all(editor.is_stored(weight) for weight in (*weights, *matrices)):
        return None
    if not _are_one_matrix(editor, matrices, is_bias_shared=len(weights) > 1):
        return None
    return _Steps(states=tuple(states), products=tuple(products), kind=kind, weights=weights)


def _are_one_matrix(editor: GraphEditor, matrices: list[int], *, is_bias_shared: bool) -> bool:
    """Whether all steps have one matrix: a small one the exporter turns, and stores once for each step."""
    count = len(set(matrices))
    are_copies = is_bias_shared and count == len(matrices)
    return count == 1 or (are_copies and len({editor.tensors[matrix].shape for matrix in matrices}) == 1)


def _is_joining(editor: GraphEditor, position: int, states: tuple[int, ...]) -> bool:
    node = editor.node(position)
    return node.kind is OpKind.CONCAT and node.attributes.get("axis") == 0 and node.inputs == states


def _are_inner(editor: GraphEditor, steps: _Steps, joined: set[int]) -> bool:
    """Whether the states before the last one are read by the next step and the sequence alone."""
    return all(
        set(editor.readers(state)) - joined == {editor.writer(product)}
        for state, product in zip(steps.states[:-1], steps.products[1:], strict=True)
    )


def _join_directions(editor: GraphEditor, position: int, concat: Node) -> None:
    pair = [editor.writer_of_kind(tensor, OpKind.RNN) for tensor in concat.inputs]
    forward, backward = pair
    if forward is None or backward is None or concat.attributes.get("axis") != _STEP_RANK - 1:
        return
    is_pair = not forward.attributes.get("is_reversed") and backward.attributes.get("is_reversed")
    is_alike = all(forward.attributes.get(name) == backward.attributes.get(name) for name in ("hidden_size", "variant"))
    are_single = all(node is not None and node.attributes.get("num_directions") == 1 for node in pair)
    are_sequences = concat.inputs == (forward.outputs[0], backward.outputs[0])
    is_read_here = are_sequences and all(editor.only_reader(tensor) == position for tensor in concat.inputs)
    is_joined = is_pair and is_alike and are_single and is_read_here
    if not is_joined or forward.inputs[0] != backward.inputs[0]:
        return
    places = [editor.writer(tensor) for tensor in concat.inputs]
    first, second = sorted(places)
    starts = [forward.inputs[1], backward.inputs[1]]
    fills = [editor.writer_of_kind(start, OpKind.FILL) for start in starts]
    if None in fills and any(editor.writer(start) >= first for start in starts):
        return
    if -1 in {*editor.readers(forward.outputs[1]), *editor.readers(backward.outputs[1])}:
        return
    last = editor.tensors[forward.outputs[1]]
    shape = (Dim(0, 2), *last.shape[1:])
    both = editor.add_tensor(f"{last.name}_both", shape, last.dtype)
    if fills[0] is not None and fills[1] is not None:
        start = editor.add_tensor(f"{last.name}_start", shape, last.dtype)
        editor.replace(min(map(editor.writer, starts)), replace(fills[0], outputs=(start,)))
        starts = [start]
    weights = (*forward.inputs[2:], *backward.inputs[2:])
    attributes = {**forward.attributes, "num_directions": 2}
    layer = replace(
        forward,
        inputs=(forward.inputs[0], *starts, *weights),
        outputs=(concat.outputs[0], both),
        attributes=attributes,
    )
    editor.remove(second)
    editor.remove(position)
    editor.replace(first, layer)
    for state in (forward.outputs[1], backward.outputs[1]):
        for reader in [reader for reader in editor.readers(state) if reader >= 0][:1]:
            slices = editor.make_node(
                OpKind.VIEW, (both,), (state,), like=layer, source_op="slice", attributes={"function": "slice"}
            )
            editor.insert_before(reader, slices)
