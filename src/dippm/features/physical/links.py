"""Which operators read from which, views taken out, and the means over neighbours that follow from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray, last_writes
from dippm.costs.sizes import GraphSizes
from dippm.graph import OpKind

__all__ = ["Links", "Messages", "messages_of"]

Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Links:
    """Which operators read from which, views taken out, and what the views between them did.

    Args:
        producer: Producer of each tensor that lies between two operators.
        consumer: Its consumer, ascending.
        reads_reordered: Whether an operator reads something that a view has put in another order.
        reads_part: Whether it reads something that a view has cut out.
        is_read_reordered: Whether some operator reads its result in another order.

    Shapes:
        producer, consumer: [E]; the others: [n_nodes].
    """

    producer: IndexArray
    consumer: IndexArray
    reads_reordered: BoolArray
    reads_part: BoolArray
    is_read_reordered: BoolArray

    @classmethod
    def of(cls, sizes: GraphSizes) -> Links:
        """Follow every read back through views to the operator that wrote it."""
        edges, count = sizes.edges, len(sizes.arrays.kind)
        is_view = sizes.is_kind(OpKind.VIEW)
        written = last_writes(
            edges.write_tensor, edges.write_node, edges.read_tensor, edges.read_node, values=len(sizes.arrays.rank)
        )
        # A write by a view stands for the one that the view's first input goes back to; one more stands for none.
        none = len(edges.write_node)
        source = np.full(count, none)
        source[edges.read_node[::-1]] = written[::-1]
        origin = np.append(np.where(is_view[edges.write_node], source[edges.write_node], np.arange(none)), none)
        is_reordered, is_part = (
            np.append((is_view & sizes.has_function(*chosen))[edges.write_node], False)
            for chosen in (_REORDERING_VIEWS, _PARTIAL_VIEWS)
        )
        while ((further := origin[origin]) != origin).any():
            is_reordered |= is_reordered[origin]
            is_part |= is_part[origin]
            origin = further

        is_read = ~is_view[edges.read_node]
        node, written = edges.read_node[is_read], written[is_read]
        owner = np.append(edges.write_node, -1)[origin[written]]
        is_between = owner >= 0
        reads_reordered, reads_part, is_read_reordered = np.zeros((3, count), dtype=np.bool_)
        reads_reordered[node[is_reordered[written]]] = True
        reads_part[node[is_part[written]]] = True
        is_read_reordered[owner[is_between & is_reordered[written]]] = True
        return cls(
            producer=owner[is_between],
            consumer=node[is_between],
            reads_reordered=reads_reordered,
            reads_part=reads_part,
            is_read_reordered=is_read_reordered,
        )


def messages_of(node: IndexArray, class_of: IndexArray, hearer: IndexArray, heard: IndexArray) -> Messages:
    """What each class hears: the means over the classes of its representative's neighbours.

    Args:
        node: One operator of each class.
        class_of: Class of each node.
        hearer: A node for each tensor that lies between it and a neighbour.
        heard: The neighbour.
    """
    representative = np.full(len(class_of), -1)
    representative[node] = np.arange(len(node))
    is_heard = representative[hearer] >= 0
    own, other = representative[hearer[is_heard]], class_of[heard[is_heard]]
    count = np.bincount(own, minlength=len(node))
    pairs, times = np.unique(own * len(node) + other, return_counts=True)
    target, source = np.divmod(pairs, len(node))
    return Messages(source=source, target=target, weight=(times / count[target]).astype(np.float32))
