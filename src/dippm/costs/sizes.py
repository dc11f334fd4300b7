"""What every family's sizes are built from: the graphs' arrays, and tables of polynomials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import Edges, IndexArray, value_at
from dippm.costs.polynomial import FloatArray, dimension, evaluate, numel, pad
from dippm.graph import Attribute, Graph, GraphArrays, Node, OpKind
from dippm.graph.codes import mark

__all__ = ["GraphSizes", "SizeTable"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GraphSizes:
    """One or several graphs with the arrays that all cost rules share.

    Nodes and tensors are numbered through, graph after graph: whatever is worked out for all nodes is worked out for
    all graphs at once. What a node itself says of its tensors are numbers within its graph; ``edges`` has those that
    count here.

    Args:
        graphs: The models.
        nodes: All nodes.
        arrays: Tensor dimensions.
        edges: Which node reads and writes which tensor.
        elements: Number of elements of each tensor as polynomials, with a last row of 1 so that tensor -1, an
            absent input, counts one element.

    Shapes:
        elements: [T + 1, D].
    """

    graphs: tuple[Graph, ...]
    nodes: tuple[Node, ...]
    arrays: GraphArrays
    edges: Edges
    elements: FloatArray

    def elements_of(self, tensors: IndexArray) -> FloatArray:
        """Number of elements of some tensors, as polynomials.

        Shapes:
            tensors: [n]; result: [n, D].
        """
        return self.elements.take(tensors, axis=0)

    @classmethod
    def from_graphs(cls, graphs: Sequence[Graph]) -> GraphSizes:
        """Collect the arrays of several graphs."""
        arrays = GraphArrays.from_graphs(graphs)
        elements = numel(arrays)
        one = np.zeros((1, elements.shape[1]))
        one[0, 0] = 1.0
        return cls(
            graphs=tuple(graphs),
            nodes=tuple(chain.from_iterable(graph.nodes for graph in graphs)),
            arrays=arrays,
            edges=Edges.from_graphs(graphs),
            elements=np.concatenate([elements, one]),
        )

    @classmethod
    def from_graph(cls, graph: Graph) -> GraphSizes:
        """Collect the arrays of one graph."""
        return cls.from_graphs([graph])

    @property
    def graph(self) -> Graph:
        """The model, where there is one alone."""
        (graph,) = self.graphs
        return graph

    @property
    def nodes_of_graphs(self) -> list[slice]:
        """The nodes of each graph."""
        return [slice(first, stop) for first, stop in pairwise(self.arrays.node_start.tolist())]

    def is_kind(self, *kinds: OpKind) -> npt.NDArray[np.bool_]:
        """Which nodes are of one of these kinds, [n_nodes]."""
        return mark(OpKind, kinds)[self.arrays.kind]

    def has_function(self, *functions: str) -> npt.NDArray[np.bool_]:
        """Which nodes compute one of these functions, [n_nodes]."""
        is_meant = np.array([*(name in functions for name in self.arrays.functions), False])
        # What has none is at -1, the last place.
        result: npt.NDArray[np.bool_] = is_meant[self.arrays.function]
        return result

    def read_attributes(
        self,
        nodes: IndexArray,
        read: Callable[[Mapping[str, Attribute]], float | Sequence[float]],
        *,
        numbers: int | None = None,
    ) -> FloatArray:
        """What the attributes of some nodes say, read once where several nodes have the same.

        Args:
            nodes: The nodes.
            read: Reads one number or several.
            numbers: How many it reads; None for one by itself.

        Shapes:
            nodes: [n]; result: [n] or [n, numbers].
        """
        number, attributes = self.arrays.attribute[nodes], self.arrays.attributes
        used = np.flatnonzero(np.bincount(number, minlength=len(attributes)))
        place = np.empty(len(attributes), dtype=np.int64)
        place[used] = np.arange(len(used))
        values = np.array([read(attributes[each]) for each in used.tolist()], dtype=np.float64)
        shape = (len(used),) if numbers is None else (len(used), numbers)
        result: FloatArray = values.reshape(shape)[place[number]]
        return result

    def inputs(self, nodes: IndexArray, position: int) -> IndexArray:
        """The tensor at one place among each node's inputs, -1 where it is absent."""
        if position == 0:
            return self.edges.first_input.take(nodes)
        return value_at(self.edges.input_tensor, self.edges.input_start, position, nodes)

    def outputs(self, nodes: IndexArray) -> IndexArray:
        """The first output of each node, -1 where it has none."""
        return self.edges.first_output.take(nodes)

    def dimension(self, tensors: IndexArray, positions: int | IndexArray) -> FloatArray:
        """One dimension of each tensor as polynomials; see :func:`dippm.costs.polynomial.dimension`."""
        return dimension(self.arrays, tensors, positions)

    def rank(self, tensors: IndexArray) -> IndexArray:
        """Number of dimensions of each tensor, 0 for none."""
        result: IndexArray = np.where(tensors >= 0, self.arrays.rank[tensors], 0)
        return result


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SizeTable:
    """Several sizes of several nodes as polynomials.

    Args:
        node: The nodes.
        sizes: Number of sizes of each node.
        polynomials: Their coefficients, all nodes of the first size, then of the second, ...

    Shapes:
        node: [n]; polynomials: [sizes * n, D].
    """

    node: IndexArray
    sizes: int
    polynomials: FloatArray

    @classmethod
    def of(cls, node: IndexArray, sizes: Sequence[FloatArray]) -> SizeTable:
        """Stack the polynomials of each size, [n, D] each."""
        width = max(size.shape[1] for size in sizes)
        return cls(node=node, sizes=len(sizes), polynomials=np.concatenate([pad(size, width) for size in sizes]))

    def at(self, batches: FloatArray) -> list[FloatArray]:
        """Values of every size.

        Shapes:
            batches: [B]; each of the results: [B, n].
        """
        values = evaluate(self.polynomials, batches).reshape(len(batches), self.sizes, len(self.node))
        return [values[:, size] for size in range(self.sizes)]
