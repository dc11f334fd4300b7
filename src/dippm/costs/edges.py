"""Which node reads and writes which tensor, as flat index arrays built once per graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.graph import Graph

__all__ = ["Edges", "IndexArray"]

IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Edges:
    """All reads and writes of a graph, in node order.

    Args:
        read_node: Node of each read.
        read_position: Place of each read among its node's inputs; absent optional inputs keep theirs.
        read_tensor: Tensor of each read.
        write_node: Node of each write.
        write_position: Place of each write among its node's outputs.
        write_tensor: Tensor of each write.

    Shapes:
        read_*: [E] reads, absent inputs left out. write_*: [W] writes.
    """

    read_node: IndexArray
    read_position: IndexArray
    read_tensor: IndexArray
    write_node: IndexArray
    write_position: IndexArray
    write_tensor: IndexArray

    @classmethod
    def from_graph(cls, graph: Graph) -> Edges:
        """Collect the arrays in one walk over the nodes."""
        read_node, read_position, read_tensor = _flatten([node.inputs for node in graph.nodes])
        write_node, write_position, write_tensor = _flatten([node.outputs for node in graph.nodes])
        is_present = read_tensor >= 0
        return cls(
            read_node=read_node[is_present],
            read_position=read_position[is_present],
            read_tensor=read_tensor[is_present],
            write_node=write_node,
            write_position=write_position,
            write_tensor=write_tensor,
        )


def _flatten(lists: list[tuple[int, ...]]) -> tuple[IndexArray, IndexArray, IndexArray]:
    lengths = np.fromiter((len(items) for items in lists), dtype=np.int64, count=len(lists))
    flat = np.array([index for items in lists for index in items], dtype=np.int64)
    owner = np.repeat(np.arange(len(lists), dtype=np.int64), lengths)
    position = np.arange(len(flat), dtype=np.int64) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return owner, position, flat
