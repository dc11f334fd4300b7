"""Bytes that every operator must move between device memory and the chip, each element once.

An operator reads each distinct input once, weights among them, and writes each output once, in place or not. It reads
less where it only fetches part of its input: embedding and gather read what they return, at most the whole table once,
a copy of a slice reads the slice, a tensor that was expanded over a dimension is read as large as its storage, and of
the matrices that a mixture keeps for its experts one is read for each row, at most all of them once.
Views move nothing. Norms that train read their input once for the statistics and once more to use them, as their
gradients do with both of theirs. An optimizer writes what it updates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.polynomial import FloatArray, evaluate, is_at_most, pad, scale, scatter_add
from dippm.costs.precision import TypePlan
from dippm.costs.sizes import GraphSizes
from dippm.graph import OpKind

__all__ = ["Reads", "reads_twice", "storage_polynomials", "write_polynomials"]

# Reads of the first input that cannot exceed what the node returns.
_FETCHING_KINDS = frozenset({OpKind.EMBEDDING, OpKind.GATHER, OpKind.COPY})
_SILENT_KINDS = frozenset({OpKind.VIEW, OpKind.FILL, OpKind.RANDOM})


def storage_polynomials(sizes: GraphSizes, tensor_bytes: FloatArray, tensors: IndexArray) -> FloatArray:
    """Bytes of the storage behind some tensors, their own or the one that they share.

    A stated storage size scales with the element size at hand.

    Shapes:
        tensor_bytes: [T]; tensors: [n]; result: [n, D].
    """
    arrays = sizes.arrays
    owner = arrays.storage[tensors]
    result = pad(scale(sizes.elements_of(owner), tensor_bytes[owner]), 2)
    stated = np.flatnonzero(arrays.storage_per_sample[owner] >= 0)
    owner = owner[stated]
    larger = tensor_bytes[owner] / np.maximum(arrays.bits[owner] / 8.0, 0.125)
    result[stated] = 0.0
    result[stated, 0] = arrays.storage_fixed[owner] * larger
    result[stated, 1] = arrays.storage_per_sample[owner] * larger
    return result


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reads:
    """Bytes read by every node, with the batch left open.

    Args:
        certain: Bytes of the reads that one polynomial describes, summed by node.
        node: Node of each read that has a limit.
        whole: Its bytes without the limit.
        limit: Its limit; which of the two is smaller depends on the batch.
        polynomials: Coefficients of the bytes without limits, then those of the limits; equal rows read equally much.

    Shapes:
        certain: [n_nodes, D]; node: [L]; whole, limit: [L, D]; polynomials: [n_nodes, 2 D], or [n_nodes, D] where no
        read has a limit.
    """

    certain: FloatArray
    node: IndexArray
    whole: FloatArray
    limit: FloatArray
    polynomials: FloatArray

    @classmethod
    def build(cls, sizes: GraphSizes, types: TypePlan, *, read_bytes: FloatArray | None = None) -> Reads:
        """Collect the reads of a graph.

        Args:
            sizes: The graph's arrays.
            types: Its number formats.
            read_bytes: Bytes for each element of each read, 0 where it comes from no memory; None for what the format
                says.

        Shapes:
            read_bytes: [E].
        """
        edges = sizes.edges
        node, tensor = edges.read_node, edges.read_tensor
        read_bytes = types.read_bytes if read_bytes is None else read_bytes
        whole = pad(scale(sizes.elements_of(tensor), read_bytes), 2)
        limit = np.full_like(whole, np.inf)

        # A tensor expanded over a dimension repeats its storage; one that is a piece of its storage does not.
        shared = np.flatnonzero(sizes.arrays.storage[tensor] != tensor)
        if len(shared):
            larger = read_bytes[shared] / np.maximum(types.tensor_bytes[tensor[shared]], 0.125)
            limit[shared] = scale(storage_polynomials(sizes, types.tensor_bytes, tensor[shared]), larger)
        is_fetching = sizes.is_kind(*_FETCHING_KINDS)
        fetched = np.flatnonzero(is_fetching[node] & (edges.read_position == 0))
        if len(fetched):
            returned = sizes.elements_of(sizes.outputs(node[fetched])) * read_bytes[fetched, None]
            limit[fetched] = pad(returned, whole.shape[1])
            # Bags add up what they fetch: a row for each index, of which fewer are returned.
            bags = fetched[sizes.is_kind(OpKind.EMBEDDING)[node[fetched]]]
            rows = sizes.elements_of(sizes.inputs(node[bags], 1))
            width = sizes.dimension(sizes.outputs(node[bags]), -1)[:, :1]
            limit[bags] = pad(rows * width * read_bytes[bags, None], whole.shape[1])
        expert = np.flatnonzero(_chooses_matrices(sizes)[node] & (edges.read_position == 1))
        if len(expert):
            width = sizes.dimension(sizes.inputs(node[expert], 0), -1)[:, :1]
            chosen = sizes.elements_of(sizes.outputs(node[expert])) * width * read_bytes[expert, None]
            limit[expert] = pad(chosen, whole.shape[1])
        is_limited = np.zeros(len(node), dtype=np.bool_)
        for some in (shared, fetched, expert):
            is_limited[some] = True
        limited = np.flatnonzero(is_limited)
        is_lower = is_at_most(limit.take(limited, axis=0), whole.take(limited, axis=0))
        lower = limited[is_lower]
        whole[lower] = limit.take(lower, axis=0)

        is_silent = sizes.is_kind(*_SILENT_KINDS)
        is_in_place = _scatters_in_place(sizes)
        # The same tensor twice among a node's inputs is read once.
        is_read = edges.is_first & ~is_silent[node] & ~(is_in_place[node] & (edges.read_position == 0))
        is_twice = reads_twice(sizes)[node] & (edges.read_position < 2)
        is_twice &= (edges.read_position == 0) | sizes.is_kind(OpKind.NORM_GRAD)[node]
        whole[is_twice] *= 2.0
        limit[is_twice] *= 2.0
        undecided = limited[is_read[limited] & ~is_at_most(whole.take(limited, axis=0), limit.take(limited, axis=0))]
        is_read[undecided] = False
        certain = polynomials = scatter_add(node[is_read], whole.compress(is_read, axis=0), count=len(sizes.nodes))
        node, whole, limit = node[undecided], whole.take(undecided, axis=0), limit.take(undecided, axis=0)
        if len(node):
            of_nodes, limits = (scatter_add(node, each, count=len(certain)) for each in (whole, limit))
            polynomials = np.concatenate([certain + of_nodes, limits], axis=1)
        return cls(certain=certain, node=node, whole=whole, limit=limit, polynomials=polynomials)

    def at(self, batches: FloatArray) -> FloatArray:
        """Bytes at each batch.

        Shapes:
            batches: [B]; result: [B, n_nodes].
        """
        result = evaluate(self.certain, batches)
        if len(self.node):
            smaller = np.minimum(evaluate(self.whole, batches), evaluate(self.limit, batches))
            for total, more in zip(result, smaller, strict=True):
                np.add.at(total, self.node, more)
        return result


def write_polynomials(sizes: GraphSizes, types: TypePlan, *, written_bytes: FloatArray | None = None) -> FloatArray:
    """Bytes written by every node.

    Args:
        sizes: The graph's arrays.
        types: Its number formats.
        written_bytes: Bytes for each element of each write; None for what the format says.

    Shapes:
        written_bytes: [W]; result: [n_nodes, D].
    """
    edges = sizes.edges
    node, tensor = edges.write_node, edges.write_tensor
    written_bytes = types.tensor_bytes[tensor] if written_bytes is None else written_bytes
    written = pad(scale(sizes.elements_of(tensor), written_bytes), 2)
    written[sizes.is_kind(OpKind.VIEW)[node]] = 0.0
    # Scattering in place touches as much as the updates hold.
    partial = np.flatnonzero(_scatters_in_place(sizes)[node] & (edges.write_position == 0))
    updates = edges.input_tensor[edges.input_start[node[partial] + 1] - 1]
    written[partial] = pad(sizes.elements_of(updates) * types.tensor_bytes[tensor[partial], None], written.shape[1])
    result = scatter_add(node, written, count=len(sizes.nodes))
    for position in np.flatnonzero(sizes.is_kind(OpKind.OPTIMIZER)).tolist():
        count, first = sizes.nodes[position].attributes.get("updated", 0), edges.input_start[position]
        updated = edges.input_tensor[first : edges.input_start[position + 1]][: count if isinstance(count, int) else 0]
        moved = (sizes.elements_of(updated) * types.tensor_bytes[updated, None]).sum(axis=0)
        result[position, : len(moved)] += moved
    return result


def reads_twice(sizes: GraphSizes) -> npt.NDArray[np.bool_]:
    """Nodes that go over their first inputs twice."""
    result, norms = sizes.is_kind(OpKind.NORM_GRAD), np.flatnonzero(sizes.is_kind(OpKind.BATCH_NORM))
    result[norms] = sizes.read_attributes(norms, lambda attributes: attributes.get("is_training") is True) > 0
    return result


def _chooses_matrices(sizes: GraphSizes) -> npt.NDArray[np.bool_]:
    """Products of rows [M, K] with a stack [E, K, N] that give [M, N]: every row meets one matrix of the stack."""
    product = np.flatnonzero(sizes.is_kind(OpKind.MATMUL))
    left, right, out = sizes.inputs(product, 0), sizes.inputs(product, 1), sizes.outputs(product)
    result = np.zeros(len(sizes.nodes), dtype=np.bool_)
    result[product] = (sizes.rank(left) == 2) & (sizes.rank(right) == 3) & (sizes.rank(out) == 2)
    return result


def _scatters_in_place(sizes: GraphSizes) -> npt.NDArray[np.bool_]:
    storage = sizes.arrays.storage
    scatter = np.flatnonzero(sizes.is_kind(OpKind.SCATTER) & (np.diff(sizes.edges.input_start) > 1))
    source, out = sizes.inputs(scatter, 0), sizes.outputs(scatter)
    result = np.zeros(len(sizes.arrays.kind), dtype=np.bool_)
    result[scatter] = (source >= 0) & (out >= 0) & (storage[source] == storage[out])
    return result
