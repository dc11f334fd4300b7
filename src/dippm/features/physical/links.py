"""Which operators read from which, views taken out, and the means over neighbours that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.graph import Graph, OpKind

__all__ = ["Links", "Messages", "messages_of"]

Float32Array = npt.NDArray[np.float32]

# What a view does to the order in which the next kernel reads.
_REORDERING_VIEWS = frozenset({"permute", "transpose"})
_PARTIAL_VIEWS = frozenset({"unbind", "split", "slice", "select", "split_with_sizes", "unfold"})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Messages:
    """Means over neighbours: the value of ``source`` times ``weight``, summed by ``target``, which is ascending.

    Shapes:
        All [E].
    """

    source: IndexArray
    target: IndexArray
    weight: Float32Array


class Links:
    """Which operators read from which, views taken out, and what the views between them did.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        owner = [-1] * len(graph.tensors)
        is_reordered = [False] * len(graph.tensors)
        is_part = [False] * len(graph.tensors)
        count = len(graph.nodes)
        self.producers: list[list[int]] = [[] for _ in range(count)]
        self.consumers: list[list[int]] = [[] for _ in range(count)]
        self.reads_reordered = [False] * count
        self.reads_part = [False] * count
        self.is_read_reordered = [False] * count
        for position, node in enumerate(graph.nodes):
            inputs = [index for index in node.inputs if index >= 0]
            if node.kind is OpKind.VIEW:
                function = node.attributes.get("function")
                for index in node.outputs:
                    if inputs:
                        owner[index] = owner[inputs[0]]
                        is_reordered[index] = is_reordered[inputs[0]] or function in _REORDERING_VIEWS
                        is_part[index] = is_part[inputs[0]] or function in _PARTIAL_VIEWS
                continue
            for index in inputs:
                if owner[index] >= 0:
                    self.producers[position].append(owner[index])
                    self.consumers[owner[index]].append(position)
                    self.is_read_reordered[owner[index]] |= is_reordered[index]
                self.reads_reordered[position] |= is_reordered[index]
                self.reads_part[position] |= is_part[index]
            for index in node.outputs:
                owner[index] = position

    @cached_property
    def edges(self) -> tuple[IndexArray, IndexArray]:
        """Producer and consumer of each tensor that lies between two operators, [E] each."""
        source = [other for producers in self.producers for other in producers]
        target = np.repeat(np.arange(len(self.producers)), [len(producers) for producers in self.producers])
        return np.array(source, dtype=np.int64), target


def messages_of(node: IndexArray, class_of: IndexArray, neighbours: list[list[int]]) -> Messages:
    """What each class hears: the means over the classes of its representative's neighbours.

    Args:
        node: One operator of each class.
        class_of: Class of each node.
        neighbours: Neighbours of each node, one for each tensor that lies between them.
    """
    count = np.array([len(neighbours[position]) for position in node.tolist()], dtype=np.int64)
    heard = class_of[[other for position in node.tolist() for other in neighbours[position]]]
    pairs, times = np.unique(np.repeat(np.arange(len(node)), count) * len(node) + heard, return_counts=True)
    target, source = np.divmod(pairs, len(node))
    return Messages(source=source, target=target, weight=(times / count[target]).astype(np.float32))
