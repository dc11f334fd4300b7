"""A graph's operators in post-order, with the data edges between them."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.graph import Graph, OpKind

__all__ = ["OperatorOrder", "order_operators"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class OperatorOrder:
    """Operators in the order of a post-order traversal: what a node reads stands before it.

    Args:
        nodes: Position of each operator among the graph's nodes.
        edges: Producer and consumer of each data edge as places in ``nodes``, each pair once, by consumer.

    Shapes:
        nodes: [n]; edges: [2, E].
    """

    nodes: npt.NDArray[np.int64]
    edges: npt.NDArray[np.int64]


def order_operators(graph: Graph, *, filtered: Container[OpKind]) -> OperatorOrder:
    """Order and connect the nodes that are not filtered.

    The traversal of Algorithm 1 in Panner Selvam and Brorsson, "DIPPM" (2023): from each output of the model, in the
    model's order, it visits what a node reads, input by input, and then the node itself. Nodes that no output depends
    on follow in the graph's own order; eager execution runs them too.

    Where filtered nodes stand between two operators, the edge between these stays.

    Args:
        graph: The model.
        filtered: Kinds that are no operators.
    """
    producer = graph.producers()
    parents = [[producer[i] for i in node.inputs if i >= 0 and producer[i] >= 0] for node in graph.nodes]
    roots = [producer[tensor] for tensor in graph.outputs if producer[tensor] >= 0]
    nodes: list[int] = []
    sources: list[int] = []
    targets: list[int] = []
    # Places in ``nodes`` of the operators whose results a node hands on: itself, or those behind a filtered node.
    # Dictionaries stand for sets that keep their order.
    behind: list[dict[int, None]] = [{} for _ in graph.nodes]
    for position in _post_order(parents, [*roots, *range(len(graph.nodes))]):
        feeding: dict[int, None] = {}
        for parent in parents[position]:
            feeding |= behind[parent]
        if graph.nodes[position].kind in filtered:
            behind[position] = feeding
            continue
        place = len(nodes)
        behind[position] = {place: None}
        nodes.append(position)
        sources.extend(feeding)
        targets.extend([place] * len(feeding))
    return OperatorOrder(
        nodes=np.array(nodes, dtype=np.int64), edges=np.array([sources, targets], dtype=np.int64).reshape(2, -1)
    )


def _post_order(parents: list[list[int]], roots: list[int]) -> list[int]:
    """Visit every root after all that it depends on; with its own stack, as models are deeper than Python recurses."""
    order: list[int] = []
    is_seen = [False] * len(parents)
    for root in roots:
        if is_seen[root]:
            continue
        is_seen[root] = True
        stack = [(root, iter(parents[root]))]
        while stack:
            position, remaining = stack[-1]
            for parent in remaining:
                if not is_seen[parent]:
                    is_seen[parent] = True
                    stack.append((parent, iter(parents[parent])))
                    break
            else:
                stack.pop()
                order.append(position)
    return order
