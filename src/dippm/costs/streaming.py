"""Softmax and norms, reductions and pooling: the sizes that bound them by memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.elementary import window
from dippm.costs.polynomial import FloatArray, multiply
from dippm.costs.sizes import GraphSizes, SizeTable
from dippm.graph import OpKind

__all__ = [
    "PoolSizes",
    "PoolTable",
    "ReductionSizes",
    "ReductionTable",
    "RowSizes",
    "RowTable",
]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowSizes:
    """Softmax and norms: ``rows`` independent groups of ``width`` elements.

    Args:
        node: Node of each column.
        rows: Groups.
        width: Elements normalised together.
        is_last: Whether those elements are the tensor's last dimensions, contiguous in its own order.

    Shapes:
        node, is_last: [n_row]; the others: [B, n_row].
    """

    node: IndexArray
    rows: FloatArray
    width: FloatArray
    is_last: npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowTable:
    """Softmax and norms with the batch left open."""

    table: SizeTable
    rows: FloatArray
    is_last: npt.NDArray[np.bool_]

    @classmethod
    def build(cls, sizes: GraphSizes, node: IndexArray) -> RowTable:
        """Take the group's size from ``axes_size``, else from the dimensions in ``axes``, else from the last one."""
        source = sizes.inputs(node, 0)
        rank = sizes.rank(source)
        stated = sizes.read_attributes(node, lambda attributes: _size(attributes.get("axes_size")))
        is_grouped = _grouped(sizes, node, rank)
        places = range(is_grouped.shape[1])
        absent = np.int64(len(places))
        width = multiply(*(sizes.dimension(source, np.where(is_grouped[:, at], at, absent)) for at in places))
        rows = multiply(*(sizes.dimension(source, np.where(is_grouped[:, at], absent, at)) for at in places))
        has_size = stated > 0
        width[has_size] = 0.0
        width[has_size, 0] = stated[has_size]
        rows[has_size] = 0.0
        elements = sizes.elements_of(source)
        rows[has_size, : elements.shape[1]] = (elements[has_size] / stated[has_size, None])[:, : rows.shape[1]]
        return cls(
            table=SizeTable.of(node, [rows, width]),
            rows=rows,
            is_last=has_size | is_grouped[np.arange(len(node)), np.maximum(rank - 1, 0)],
        )

    def at(self, batches: FloatArray) -> RowSizes:
        """Sizes at each batch."""
        rows, width = self.table.at(batches)
        return RowSizes(node=self.table.node, rows=rows, width=width, is_last=self.is_last)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReductionSizes:
    """Sums and the like, running sums, sorts.

    Args:
        node: Node of each column.
        in_elements: Elements read.
        out_elements: Elements of the first output.

    Shapes:
        node: [n_reduction]; the others: [B, n_reduction].
    """

    node: IndexArray
    in_elements: FloatArray
    out_elements: FloatArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReductionTable:
    """Reductions with the batch left open."""

    table: SizeTable

    @classmethod
    def build(cls, sizes: GraphSizes, node: IndexArray) -> ReductionTable:
        """Count elements in and out."""
        return cls(
            table=SizeTable.of(node, [sizes.elements_of(sizes.inputs(node, 0)), sizes.elements_of(sizes.outputs(node))])
        )

    def at(self, batches: FloatArray) -> ReductionSizes:
        """Sizes at each batch."""
        in_elements, out_elements = self.table.at(batches)
        return ReductionSizes(node=self.table.node, in_elements=in_elements, out_elements=out_elements)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PoolSizes:
    """Pooling.

    Args:
        node: Node of each column.
        in_elements: Elements read.
        out_elements: Elements written.
        window: Elements under one position of the window; of global pooling, all that one output element sums.

    Shapes:
        node: [n_pool]; the others: [B, n_pool].
    """

    node: IndexArray
    in_elements: FloatArray
    out_elements: FloatArray
    window: FloatArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PoolTable:
    """Pooling with the batch left open."""

    table: SizeTable
    window: FloatArray

    @classmethod
    def build(cls, sizes: GraphSizes, node: IndexArray) -> PoolTable:
        """Count elements in and out; a window of 0 stands for global pooling."""
        return cls(
            table=SizeTable.of(
                node, [sizes.elements_of(sizes.inputs(node, 0)), sizes.elements_of(sizes.outputs(node))]
            ),
            window=np.where(sizes.is_kind(OpKind.GLOBAL_POOL)[node], 0.0, sizes.read_attributes(node, window)),
        )

    def at(self, batches: FloatArray) -> PoolSizes:
        """Sizes at each batch."""
        in_elements, out_elements = self.table.at(batches)
        overall = in_elements / np.maximum(out_elements, 1.0)
        return PoolSizes(
            node=self.table.node,
            in_elements=in_elements,
            out_elements=out_elements,
            window=np.where(self.window > 0, self.window, overall),
        )


def _grouped(sizes: GraphSizes, node: IndexArray, rank: IndexArray) -> npt.NDArray[np.bool_]:
    """Over which dimensions of its input each node goes, the last one where it does not say, [n, R].

    Args:
        sizes: Sizes of the graph.
        node: The nodes.
        rank: Number of dimensions of each one's input.
    """
    attribute = sizes.arrays.attribute[node]
    _, first, inverse = np.unique(np.stack([attribute, rank]), axis=1, return_index=True, return_inverse=True)
    result = np.zeros((len(first), max(int(rank.max(initial=0)), 1)), dtype=np.bool_)
    for row, (number, dimensions) in enumerate(zip(attribute[first].tolist(), rank[first].tolist(), strict=True)):
        axes = sizes.arrays.attributes[number].get("axes")
        for axis in axes if isinstance(axes, tuple) and axes else (-1,):
            place = axis + dimensions if axis < 0 else axis
            if 0 <= place < dimensions:
                result[row, place] = True
    return result[inverse.reshape(-1)]


def _size(value: object) -> int:
    """``axes_size`` as a number; a tuple is a shape."""
    if isinstance(value, tuple):
        size = 1
        for length in value:
            size *= int(length)
        return size
    return int(value) if isinstance(value, int | float) else 0
