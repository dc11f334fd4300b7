"""Which node reads and writes which tensor, as flat index arrays built once per graph, or for several at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.numbering import IndexArray, is_first, number_values
from dippm.graph import Graph
from dippm.graph.columns import NONE, IndexLists

__all__ = ["Edges", "IndexArray", "last_writes", "value_at"]


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
        first_input: First input of each node, -1 where it is absent.
        first_output: First output of each node, -1 where it has none.

    Shapes:
        read_*: [E] reads, absent inputs left out. write_*: [W] writes. input_*: [I] places. *_start: [n_nodes + 1].
        first_*: [n_nodes].
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
    first_input: IndexArray
    first_output: IndexArray

    @classmethod
    def from_graphs(cls, graphs: Sequence[Graph]) -> Edges:
        """Join the graphs' lists."""
        tensors = np.array([len(graph.tensors) for graph in graphs], dtype=np.int64)
        before = np.cumsum(tensors) - tensors
        read = IndexLists.joined([graph.columns.inputs for graph in graphs], before)
        written = IndexLists.joined([graph.columns.outputs for graph in graphs], before)
        is_present = read.values != NONE
        node, tensor = read.owner[is_present], read.values[is_present]
        return cls(
            read_node=node,
            read_position=read.position[is_present],
            read_tensor=tensor,
            is_first=is_first(number_values(node * tensors.sum() + tensor)),
            write_node=written.owner,
            write_position=written.position,
            write_tensor=written.values,
            input_tensor=read.values,
            input_start=read.start,
            output_start=written.start,
            first_input=value_at(read.values, read.start, 0),
            first_output=value_at(written.values, written.start, 0),
        )

    @classmethod
    def from_graph(cls, graph: Graph) -> Edges:
        """Collect the arrays of one graph."""
        return cls.from_graphs([graph])


def value_at(values: IndexArray, start: IndexArray, position: int, nodes: IndexArray | None = None) -> IndexArray:
    """The value at one place of the stretch of each node, or of some, -1 where the stretch is shorter.

    Args:
        values: All stretches, one after the other.
        start: First place of each node's, and behind the last one.
        position: The place within the stretch.
        nodes: The nodes; None for all.
    """
    first, stop = (start[:-1], start[1:]) if nodes is None else (start.take(nodes), start.take(nodes + 1))
    if not len(values):
        return np.full(len(first), NONE, dtype=np.int64)
    place = first + position
    result: IndexArray = np.where(place < stop, values.take(place, mode="clip"), NONE)
    return result


def last_writes(
    write: IndexArray, write_node: IndexArray, read: IndexArray, read_node: IndexArray, *, values: int
) -> IndexArray:
    """For each read the last write of what it reads by an earlier node, the number of writes where there is none.

    Args:
        write: What each write writes: a tensor, or a storage.
        write_node: Node of each write, ascending.
        read: What each read reads.
        read_node: Node of each read.
        values: How many tensors or storages there are.

    Shapes:
        write, write_node: [W]; read, read_node and result: [E].
    """
    none = len(write)
    write_of = np.full(values, none, dtype=np.int64)
    write_of[write] = np.arange(none)
    result = write_of[read]
    result[np.append(write_node, NONE)[result] >= read_node] = none
    # Most are written once; which write of several it is takes a search.
    is_rewritten = np.bincount(write, minlength=values) > 1
    searched = np.flatnonzero(is_rewritten[read])
    if len(searched):
        writes = np.flatnonzero(is_rewritten[write])
        count = 1 + max(int(write_node[-1]), int(read_node[searched].max()))
        keys = write[writes] * count + write_node[writes]
        order = np.argsort(keys, kind="stable")
        place = np.searchsorted(keys[order], read[searched] * count + read_node[searched]) - 1
        found = writes[order[np.maximum(place, 0)]]
        result[searched] = np.where((place >= 0) & (write[found] == read[searched]), found, none)
    return result
