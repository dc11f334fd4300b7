"""The graph of a model as a release of PyTorch runs it; frontends read it as today's does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dippm.costs.autocast import LOWERED, RAISED
from dippm.costs.software import Software
from dippm.graph import Graph, Node, OpKind
from dippm.graph.codes import mark
from dippm.graph.editor import GraphEditor
from dippm.graph.passes.unfuse_attention import unfuse_attention

__all__ = ["count_raised_products", "graph_of_release"]

# Between the softmax of attention that is written out and the product that reads it.
_CARRIERS = frozenset({OpKind.VIEW, OpKind.COPY, OpKind.DROPOUT})
# What PyTorch's softmax of such attention runs beside the softmax: it sets rows to zero that may look at no key.
_GUARD, _SEARCH = "where", ("all", "isneginf")


def graph_of_release(graph: Graph, software: Software) -> Graph:
    """The model's graph under a release.

    Args:
        graph: The graph, as it is read today.
        software: The release.

    Returns:
        A new graph; the one that was given where the release runs the same operators.
    """
    if not software.fuses_attention:
        graph = unfuse_attention(graph)
    if software.raises_attention or not count_raised_products(graph):
        return graph
    return _in_format_of_operands(graph, is_one_operator=software.fuses_attention)


def count_raised_products(graph: Graph) -> int:
    """Products of attention that is written out, which compute in FP32 where their operands have 16 bits."""
    products = np.flatnonzero(mark(OpKind, [OpKind.MATMUL])[graph.columns.kind])
    return sum(_is_raised(graph.nodes[position]) for position in products.tolist())


def _in_format_of_operands(graph: Graph, *, is_one_operator: bool) -> Graph:
    """Attention that is written out, computed in the format of its operands and with a plain softmax.

    Args:
        graph: A graph with such attention.
        is_one_operator: Whether autocast sees one operator, and not the softmax inside, which it would run in FP32.
    """
    editor = GraphEditor(graph)
    for position, node in enumerate(graph.nodes):
        if not _is_raised(node):
            continue
        softmax = _softmax_before(editor, node.inputs[0])
        if softmax >= 0:
            _drop_guard(editor, softmax)
            if is_one_operator:
                plain = editor.node(softmax)
                editor.replace(softmax, replace(plain, attributes={**plain.attributes, LOWERED: True}))
        product = editor.node(position)
        attributes = {name: value for name, value in product.attributes.items() if name != RAISED}
        editor.replace(position, replace(product, attributes=attributes))
    return editor.to_graph()


def _is_raised(node: Node) -> bool:
    # A system of equations, which is solved in FP32 as well, says what it sums.
    is_product = node.kind is OpKind.MATMUL and "contracted" not in node.attributes
    return is_product and node.attributes.get(RAISED) is True


def _softmax_before(editor: GraphEditor, tensor: int) -> int:
    """Position of the softmax whose weights reach a product as this tensor, -1 where there is none."""
    position = editor.writer(tensor)
    while position >= 0:
        node = editor.node(position)
        if node.kind is OpKind.SOFTMAX:
            return position
        if node.kind in _CARRIERS:
            source = node.inputs[0]
        elif node.attributes.get("function") == _GUARD:
            source = next((index for index in node.inputs if editor.writer_of_kind(index, OpKind.SOFTMAX)), -1)
        else:
            return -1
        position = editor.writer(source) if source >= 0 else -1
    return -1


def _drop_guard(editor: GraphEditor, position: int) -> None:
    """Leave out what sets weights to zero where no key may be looked at, and the search for such rows."""
    softmax = editor.node(position)
    (weights,) = softmax.outputs
    for reader in editor.readers(weights):
        if reader < 0 or editor.node(reader).attributes.get("function") != _GUARD:
            continue
        guard = editor.node(reader)
        (result,) = guard.outputs
        if editor.tensors[result].alias_of != weights:
            continue
        editor.substitute(result, weights)
        dropped = [reader, *_search_of(editor, guard.inputs[0])]
        gone = {index for each in dropped for index in editor.node(each).outputs}
        late = [index for each in dropped for index in editor.node(each).releases if index not in gone]
        for each in dropped:
            editor.remove(each)
        editor.replace(position, replace(softmax, releases=(*softmax.releases, *late)))


def _search_of(editor: GraphEditor, found: int) -> list[int]:
    """Positions of the nodes that tell in which rows no key may be looked at, the last first."""
    result = []
    position = editor.writer(found)
    while position >= 0 and editor.node(position).attributes.get("function") in _SEARCH:
        result.append(position)
        position = editor.writer(editor.node(position).inputs[0])
    return result
