"""Steps of ``nn.LSTMCell`` and ``nn.GRUCell``, which exporters write gate by gate, and one kernel computes on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dippm.graph.dim import Dim
from dippm.graph.editor import GraphEditor
from dippm.graph.graph import Node
from dippm.graph.op_kind import OpKind

__all__ = ["fuse_recurrent_cells"]

_LSTM_GATES = 4
_GRU_GATES = 3
# What a GRU's step keeps for its gradient: its three gates, the state before, and the hidden part of the new one.
_GRU_SAVED = 5


def fuse_recurrent_cells(editor: GraphEditor) -> None:
    """Recognize one step of an LSTM and of a GRU behind the two products of its gates.

    An LSTM's is ``c' = f c + i g`` and ``h' = o tanh(c')`` with the gates i, f, g, o in this order, a GRU's
    ``h' = (h - n) z + n`` with r, z, n: PyTorch's cells. Biases of the products are added by the cell's kernel, and so
    is one that is added to their sum. Where the products are those of other modules, somebody wrote the step out.
    """
    for position, node in enumerate(editor.nodes):
        if node is None or node.kind is not OpKind.ADD or len(node.inputs) != 2:
            continue
        if not _fuse_lstm(editor, position, node):
            _fuse_gru(editor, position, node)


def _fuse_lstm(editor: GraphEditor, position: int, total: Node) -> bool:
    """``total`` is the new state of the cell."""
    for kept, added in _both_orders(total):
        forget, update = editor.inner_writer(kept, OpKind.MUL), editor.inner_writer(added, OpKind.MUL)
        if forget is None or update is None:
            continue
        for f, state in _both_orders(forget):
            for i, g in _both_orders(update):
                found = _match_lstm(editor, total, state, (i, f, g))
                if found is not None:
                    hidden, gates, biases, removed = found
                    removed += [editor.writer(kept), editor.writer(added)]
                    _put_cell(editor, position, "lstm_cell", gates, state, (hidden, total.outputs[0]), removed, biases)
                    return True
    return False


def _match_lstm(
    editor: GraphEditor, total: Node, state: int, parts: tuple[int, int, int]
) -> tuple[int, tuple[int, int], list[int], list[int]] | None:
    """The new hidden state, the products of the gates, biases of their sum, and the nodes that the cell replaces."""
    for reader in editor.readers(total.outputs[0]):
        tanh = editor.node(reader) if reader >= 0 else None
        if tanh is None or tanh.kind is not OpKind.TANH:
            continue
        last = editor.only_reader(tanh.outputs[0])
        if last < 0 or editor.node(last).kind is not OpKind.MUL:
            continue
        product = editor.node(last)
        o = next((gate for gate, other in _both_orders(product) if other == tanh.outputs[0]), -1)
        sigmoids = [editor.inner_writer(gate, OpKind.SIGMOID) for gate in (*parts[:2], o) if gate >= 0]
        new = editor.inner_writer(parts[2], OpKind.TANH)
        if len(sigmoids) != len(parts) or new is None or None in sigmoids:
            continue
        i, f, out = (gate.inputs[0] for gate in sigmoids if gate is not None)
        split = _split_of(editor, (i, f, new.inputs[0], out), _LSTM_GATES)
        if split is None or not _has_shape_of(editor, state, total.outputs[0]):
            continue
        terms, biases, sums = _terms(editor, editor.node(split).inputs[0])
        products = _products(editor, terms, total.scope)
        if products is None:
            continue
        gates = [editor.writer(gate) for gate in (*parts, o)]
        return product.outputs[0], products, biases, [reader, last, split, *sums, *gates]
    return None


def _terms(editor: GraphEditor, total: int) -> tuple[tuple[int, ...], list[int], list[int]]:
    """What is summed up besides stored biases, these, and the positions of the additions."""
    biases: list[int] = []
    sums: list[int] = []
    while (added := editor.inner_writer(total, OpKind.ADD)) is not None:
        sums.append(editor.writer(total))
        stored = [tensor for tensor in added.inputs if editor.is_stored(tensor)]
        if len(stored) != 1 or len(added.inputs) != 2:
            return added.inputs, biases, sums
        biases += stored
        total = next(tensor for tensor in added.inputs if tensor not in stored)
    return (total,), biases, sums


def _fuse_gru(editor: GraphEditor, position: int, total: Node) -> None:
    """``total`` is the new hidden state."""
    for scaled, new in _both_orders(total):
        product = editor.inner_writer(scaled, OpKind.MUL)
        tanh = editor.writer_of_kind(new, OpKind.TANH)
        if product is None or tanh is None:
            continue
        for difference, update in _both_orders(product):
            minus = editor.inner_writer(difference, OpKind.SUB)
            z = editor.inner_writer(update, OpKind.SIGMOID)
            if minus is None or z is None or len(minus.inputs) != 2 or minus.inputs[1] != new:
                continue
            if editor.readers(new) != sorted((editor.writer(difference), position)):
                continue
            found = _match_gru(editor, tanh, z, total.scope)
            if found is not None and _has_shape_of(editor, minus.inputs[0], total.outputs[0]):
                products, removed = found
                removed += [editor.writer(tensor) for tensor in (scaled, new, difference, update)]
                _put_cell(editor, position, "gru_cell", products, minus.inputs[0], total.outputs, removed)
                return


def _match_gru(editor: GraphEditor, tanh: Node, z: Node, scope: str) -> tuple[tuple[int, int], list[int]] | None:
    """The products of the gates, and the nodes between them and the gates z and n."""
    candidate = editor.inner_writer(tanh.inputs[0], OpKind.ADD)
    z_sum = editor.inner_writer(z.inputs[0], OpKind.ADD)
    if candidate is None or z_sum is None:
        return None
    for x_new, reset in _both_orders(candidate):
        gated = editor.inner_writer(reset, OpKind.MUL)
        for h_new, gate in () if gated is None else _both_orders(gated):
            r = editor.inner_writer(gate, OpKind.SIGMOID)
            r_sum = None if r is None else editor.inner_writer(r.inputs[0], OpKind.ADD)
            if r is None or r_sum is None:
                continue
            for x_r, h_r in _both_orders(r_sum):
                for x_z, h_z in _both_orders(z_sum):
                    x_split = _split_of(editor, (x_r, x_z, x_new), _GRU_GATES)
                    h_split = _split_of(editor, (h_r, h_z, h_new), _GRU_GATES)
                    if x_split is None or h_split is None:
                        continue
                    wholes = (editor.node(x_split).inputs[0], editor.node(h_split).inputs[0])
                    products = _products(editor, wholes, scope)
                    if products is not None:
                        between = (tanh.inputs[0], z.inputs[0], reset, gate, r.inputs[0])
                        return products, [x_split, h_split, *(editor.writer(tensor) for tensor in between)]
    return None


def _put_cell(
    editor: GraphEditor,
    position: int,
    function: str,
    products: tuple[int, int],
    state: int,
    outputs: tuple[int, ...],
    removed: list[int],
    sum_biases: Sequence[int] = (),
) -> None:
    """Put the cell at ``position``, which writes the last of ``outputs``, and take out what it computes."""
    like = editor.node(position)
    gates, biases = [], list(sum_biases)
    for product in products:
        node = editor.node(product)
        gates.append(node.outputs[0])
        biases += [bias for bias in node.inputs[2:] if bias >= 0]
        plain = editor.make_node(
            OpKind.LINEAR, node.inputs[:2], node.outputs, like=node, attributes=dict(node.attributes)
        )
        editor.replace(product, plain)
    for number in removed:
        editor.remove(number)
    spec = editor.tensors[gates[0]]
    width = spec.shape[-1] if function == "lstm_cell" else Dim(0, editor.tensors[state].shape[-1].fixed * _GRU_SAVED)
    saved = editor.add_tensor(f"{spec.name}_saved", (*spec.shape[:-1], width), spec.dtype)
    cell = editor.make_node(
        OpKind.BINARY,
        (*gates, state, *biases),
        (*outputs, saved),
        like=like,
        source_op=function,
        attributes={"function": function},
    )
    editor.replace(position, cell)


def _products(editor: GraphEditor, tensors: tuple[int, ...], scope: str) -> tuple[int, int] | None:
    """Positions of the two linear layers of a module that write the gates, of which nothing else is read."""
    linear = [(tensor, editor.inner_writer(tensor, OpKind.LINEAR)) for tensor in tensors]
    found = [editor.writer(tensor) for tensor, node in linear if node is not None and node.scope == scope]
    return (found[0], found[1]) if len(found) == len(tensors) == 2 else None


def _split_of(editor: GraphEditor, pieces: tuple[int, ...], count: int) -> int | None:
    """Position of the split into just these pieces along the last axis, each of which is read once."""
    position = editor.writer(pieces[0])
    node = editor.writer_of_kind(pieces[0], OpKind.VIEW, "split")
    if node is None or node.outputs != pieces or len(pieces) != count:
        return None
    is_last = node.attributes.get("axis") == len(editor.tensors[pieces[0]].shape) - 1
    return position if is_last and all(editor.only_reader(piece) >= 0 for piece in pieces) else None


def _has_shape_of(editor: GraphEditor, tensor: int, other: int) -> bool:
    return editor.tensors[tensor].shape == editor.tensors[other].shape


def _both_orders(node: Node) -> Iterator[tuple[int, int]]:
    if len(node.inputs) == 2:
        first, second = node.inputs
        yield first, second
        yield second, first
