"""Which node reads and writes which tensor, as flat index arrays built once per graph, or for several at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from dippm.graph import Graph

__all__ = ["Edges", "IndexArray", "flatten"]

IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Edges:
    """All reads and writes of one or several graphs, in node order; numbered through as in ``GraphArrays``.

    Args:
        read_node: Node of each read.
        read_position: Place of each read among its node's inputs; absent optional inputs keep theirs.
        read_tensor: Tensor of each read.
        is_first: Whether the node has not read the tensor at an earlier place.
        write_node: Node of each write.
        write_position: Place of each write among its node's outputs.
        write_tensor: Tensor of each write.
        input_tensor: Tensor of each place among the nodes' inputs, -1 where it is absent.
        input_start: First place of each node there, and behind the last one.
        output_start: First write of each node, and behind the last one.

    Shapes:
        read_*: [E] reads, absent inputs left out. write_*: [W] writes. input_*: [I] places. *_start: [n_nodes + 1].
    """

    read_node: IndexArray
    read_position: IndexArray
    read_tensor: IndexArray
    is_first: npt.NDArray[np.bool_]
    write_node: IndexArray
    write_position: IndexArray
    write_tensor: IndexArray
    input_tensor: IndexArray
    input_start: IndexArray
    output_start: IndexArray

    @classmethod
    def from_graphs(cls, graphs: Sequence[Graph]) -> Edges:
        """Collect the arrays in one walk over the nodes."""
        nodes = list(chain.from_iterable(graph.nodes for graph in graphs))
        tensors = np.array([len(graph.tensors) for graph in graphs], dtype=np.int64)
        # What is to be added to the numbers that a node has for its tensors.
        before = np.repeat(np.cumsum(tensors) - tensors, [len(graph.nodes) for graph in graphs])
        read_node, read_position, read_tensor, input_start = flatten([node.inputs for node in nodes])
        write_node, write_position, write_tensor, output_start = flatten([node.outputs for node in nodes])
        write_tensor += before[write_node]
        is_present = read_tensor >= 0
        read_tensor[is_present] += before[read_node[is_present]]
        node, tensor = read_node[is_present], read_tensor[is_present]
        is_first = np.zeros(len(node), dtype=np.bool_)
        is_first[np.unique(node * tensors.sum() + tensor, return_index=True)[1]] = True
        return cls(
            read_node=node,
            read_position=read_position[is_present],
            read_tensor=tensor,
            is_first=is_first,
            write_node=write_node,
            write_position=write_position,
            write_tensor=write_tensor,
            input_tensor=read_tensor,
            input_start=input_start,
            output_start=output_start,
        )

    @classmethod
    def from_graph(cls, graph: Graph) -> Edges:
        """Collect the arrays of one graph."""
        return cls.from_graphs([graph])


def flatten(lists: Sequence[tuple[int, ...]]) -> tuple[IndexArray, IndexArray, IndexArray, IndexArray]:
    """Owner, place and value of each element of all lists, and where each list starts."""
    lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    start = np.concatenate([[0], np.cumsum(lengths)])
    flat = np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=int(start[-1]))
    owner = np.repeat(np.arange(len(lists), dtype=np.int64), lengths)
    position = np.arange(len(flat), dtype=np.int64) - start[owner]
    return owner, position, flat, start
