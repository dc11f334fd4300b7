"""What ``torch.compile`` makes one kernel of: inductor's default mode, in inference.

Matrix products, convolutions and fused attention stay calls of libraries. All else becomes loops, and loops that follow
one another run as one kernel: what passes between them stays in registers, a tensor that several of them read is read
once, and what autocast would cast on the way is written in the format that its readers take. A kernel cannot hold both
what a library call reads and what that call's result goes into, and of two reductions over different stretches the
later one waits for the whole of the earlier.

Rules after ``torch/_inductor`` (``lowering.py``, ``scheduler.py``), PyTorch 2.4. Left out: written-out attention that a
pattern turns into a fused kernel, loops that share no more than an input, and constants that are folded.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.families import FAMILY_OF_KIND, WorkFamily
from dippm.costs.polynomial import FloatArray
from dippm.costs.precision import TypePlan
from dippm.costs.sizes import GraphSizes
from dippm.graph import OpKind
from dippm.graph.codes import mark

__all__ = ["Fusion"]

BoolArray = npt.NDArray[np.bool_]

_LOOP_FAMILIES = frozenset(
    {WorkFamily.ELEMENTWISE, WorkFamily.ROW, WorkFamily.REDUCTION, WorkFamily.POOL, WorkFamily.MOVE}
)
# Sorting, random access to what is written, and random numbers keep kernels of their own.
_LIBRARY_KINDS = frozenset({OpKind.SORT, OpKind.SCATTER, OpKind.CUMULATIVE, OpKind.QUANTIZE, OpKind.DEQUANTIZE})
_IS_LOOP = mark(
    OpKind, [kind for kind in OpKind if FAMILY_OF_KIND[kind] in _LOOP_FAMILIES and kind not in _LIBRARY_KINDS]
)
_REDUCING_FAMILIES = frozenset({WorkFamily.ROW, WorkFamily.REDUCTION})
_IS_REDUCTION = mark(
    OpKind, [kind for kind in OpKind if FAMILY_OF_KIND[kind] in _REDUCING_FAMILIES or kind is OpKind.GLOBAL_POOL]
)
# What reads each of its inputs many times finds them in memory.
_WINDOW_KINDS = (OpKind.MAX_POOL, OpKind.AVG_POOL, OpKind.RESIZE, OpKind.LOCAL_RESPONSE_NORM, OpKind.GRID_SAMPLE)
# A concatenation of more is built in memory; what reads one of fewer picks from its parts.
_MOST_PICKED = 4
_NOWHERE = -1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Fusion:
    """The kernels of a compiled model, and what they move.

    Args:
        kernel: Kernel of each node, the number of its last node; -1 for views.
        read_bytes: Bytes for each element of each read of :class:`~dippm.costs.edges.Edges`; 0 where the kernel has it.
        written_bytes: The same of each write, all formats together; 0 where nothing outside of the kernel reads it.
        is_cast: Which casts of autocast are still kernels of their own.
        is_loop: Which nodes are loops, all others being calls of libraries or views.

    Shapes:
        kernel, is_loop: [n_nodes]; read_bytes: [E]; written_bytes: [W]; is_cast: [C].
    """

    kernel: IndexArray
    read_bytes: FloatArray
    written_bytes: FloatArray
    is_cast: BoolArray
    is_loop: BoolArray

    @classmethod
    def of(cls, sizes: GraphSizes, types: TypePlan) -> Fusion:
        """Fuse the operators of one or several graphs."""
        flow = _Flow.of(sizes, types)
        return cls(
            kernel=flow.kernel,
            read_bytes=np.where(flow.is_read & ~_is_repeated(flow), flow.element_bytes, 0.0),
            written_bytes=_written_bytes(flow),
            is_cast=_remaining_casts(flow),
            is_loop=flow.is_loop,
        )

    @property
    def is_launched(self) -> BoolArray:
        """Which nodes launch a kernel, the last one of each, [n_nodes]."""
        result: BoolArray = self.kernel == np.arange(len(self.kernel))
        return result


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Flow:
    """Between which kernels tensors pass.

    Args:
        sizes: The graphs.
        types: Their number formats.
        is_loop: Which nodes are loops.
        kernel: Kernel of each node.
        writer: The node that last wrote what each read reads, -1 where none did.
        owner: The tensor whose storage each read reads.
        element_bytes: Bytes for each element of each read; a loop casts what it reads by itself.
        is_read: Which reads go to memory.

    Shapes:
        is_loop, kernel: [n_nodes]; the others: [E].
    """

    sizes: GraphSizes
    types: TypePlan
    is_loop: BoolArray
    kernel: IndexArray
    writer: IndexArray
    owner: IndexArray
    element_bytes: FloatArray
    is_read: BoolArray

    @classmethod
    def of(cls, sizes: GraphSizes, types: TypePlan) -> _Flow:
        edges, is_loop = sizes.edges, _IS_LOOP[sizes.arrays.kind]
        writer = _writers(sizes)
        kernel = _kernels(sizes, writer)
        by_loop, from_loop = is_loop[edges.read_node], (writer >= 0) & is_loop[writer]
        is_inside = by_loop & from_loop & (kernel[edges.read_node] == kernel[writer])
        # Loops write what they make for a concatenation that is built to its place in it at once.
        is_built = sizes.is_kind(OpKind.CONCAT) & (kernel == np.arange(len(kernel)))
        is_joined = is_built[edges.read_node] & from_loop
        is_view = sizes.is_kind(OpKind.VIEW)[edges.read_node]
        return cls(
            sizes=sizes,
            types=types,
            is_loop=is_loop,
            kernel=kernel,
            writer=writer,
            owner=sizes.arrays.storage[edges.read_tensor],
            element_bytes=np.where(by_loop, types.tensor_bytes[edges.read_tensor], types.read_bytes),
            is_read=~is_inside & ~is_joined & ~is_view,
        )


def _writers(sizes: GraphSizes) -> IndexArray:
    """The node that last wrote what each read reads, -1 where none did, [E]."""
    edges, storage = sizes.edges, sizes.arrays.storage.tolist()
    is_view = sizes.is_kind(OpKind.VIEW).tolist()
    read, written = edges.read_tensor.tolist(), edges.write_tensor.tolist()
    last = [_NOWHERE] * len(storage)
    result: list[int] = []
    reads = pairwise(np.searchsorted(edges.read_node, np.arange(len(is_view) + 1)).tolist())
    writes = pairwise(edges.output_start.tolist())
    for node, ((first, stop), (first_write, last_write)) in enumerate(zip(reads, writes, strict=True)):
        result += [last[storage[tensor]] for tensor in read[first:stop]]
        if not is_view[node]:
            for tensor in written[first_write:last_write]:
                last[storage[tensor]] = node
    return np.array(result, dtype=np.int64)


def _kernels(sizes: GraphSizes, writer: IndexArray) -> IndexArray:
    """Kernel of each node, [n_nodes]: every loop runs as late as those that read it let it."""
    edges, kind = sizes.edges, sizes.arrays.kind
    is_view, is_loop = sizes.is_kind(OpKind.VIEW).tolist(), _IS_LOOP[kind].tolist()
    is_reduction, is_window = _IS_REDUCTION[kind].tolist(), sizes.is_kind(*_WINDOW_KINDS).tolist()
    is_built = (sizes.is_kind(OpKind.CONCAT) & (np.diff(edges.input_start) > _MOST_PICKED)).tolist()
    stretches, writers = _stretches(sizes), writer.tolist()
    count = len(is_view)
    readers: list[list[int]] = [[] for _ in range(count)]
    for node, origin in zip(edges.read_node.tolist(), writers, strict=True):
        if origin >= 0 and not is_view[node]:
            readers[origin].append(node)
    # The last node of a kernel is found by following these to the end.
    leader = list(range(count))
    # How many kernels come after a kernel at least, and which stretch it reduces.
    after, reduced = [0] * count, [_NOWHERE] * count

    def find(node: int) -> int:
        while leader[node] != node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    for node in reversed(range(count)):
        is_alone = not is_loop[node] or is_built[node]
        behind = [(find(reader), is_alone or is_window[reader]) for reader in readers[node]]
        for kernel, waits in behind:
            after[node] = max(after[node], after[kernel] + waits)
        if not is_loop[node]:
            continue
        joined = {kernel for kernel, waits in behind if is_loop[kernel] and not waits and after[kernel] == after[node]}
        if is_reduction[node]:
            reduced[node] = stretches[node]
            if any(reduced[kernel] not in {_NOWHERE, stretches[node]} for kernel in joined):
                after[node] += 1
                continue
        for kernel in sorted(joined, reverse=True):
            own = find(node)
            if _NOWHERE not in {reduced[own], reduced[kernel]} and reduced[own] != reduced[kernel]:
                continue
            last, other = max(own, kernel), min(own, kernel)
            leader[other] = last
            reduced[last] = max(reduced[own], reduced[kernel])
    return np.array([_NOWHERE if is_view[node] else find(node) for node in range(count)], dtype=np.int64)


def _stretches(sizes: GraphSizes) -> list[int]:
    """What tells the stretches that nodes reduce over apart: how many there are, of nodes that reduce, [n_nodes]."""
    every = np.arange(len(sizes.arrays.kind), dtype=np.int64)
    source = sizes.inputs(every, 0)
    _, result = np.unique(sizes.elements[source], axis=0, return_inverse=True)
    stretches: list[int] = result.reshape(-1).tolist()
    return stretches


def _is_repeated(flow: _Flow) -> BoolArray:
    """Which reads are of what their kernel has read already, [E]: a tensor again, or part of one that it read whole."""
    sizes, tensor = flow.sizes, flow.sizes.edges.read_tensor
    kernel, count = flow.kernel[sizes.edges.read_node], len(sizes.arrays.storage)
    elements = sizes.elements.sum(axis=1)
    is_whole = elements[tensor] >= elements[flow.owner]
    of_owner, of_tensor = kernel * count + flow.owner, kernel * count + tensor
    whole = np.flatnonzero(flow.is_read & is_whole)
    part = np.flatnonzero(flow.is_read & ~is_whole & ~np.isin(of_owner, of_owner[whole]))
    is_first = np.zeros(len(tensor), dtype=np.bool_)
    for chosen, keys in ((whole, of_owner), (part, of_tensor)):
        is_first[chosen[np.unique(keys[chosen], return_index=True)[1]]] = True
    return ~is_first


def _written_bytes(flow: _Flow) -> FloatArray:
    """Bytes for each element of each write, [W]: of loops those of every format in which it is read from memory."""
    sizes, types, edges = flow.sizes, flow.types, flow.sizes.edges
    storage, is_view = sizes.arrays.storage, sizes.is_kind(OpKind.VIEW)
    formats: defaultdict[tuple[int, int], set[float]] = defaultdict(set)
    chosen = np.flatnonzero(flow.is_read & (flow.writer >= 0))
    read = (values[chosen].tolist() for values in (flow.writer, flow.owner, flow.element_bytes))
    for node, tensor, width in zip(*read, strict=True):
        formats[node, tensor].add(width)
    is_write = ~is_view[edges.write_node]
    # Of several writes of a tensor the last one stays.
    last = dict(zip(storage[edges.write_tensor[is_write]].tolist(), edges.write_node[is_write].tolist(), strict=True))
    for graph, before in zip(sizes.graphs, sizes.arrays.tensor_start.tolist(), strict=False):
        for output in graph.outputs:
            tensor = int(storage[before + output])
            if tensor in last:
                formats[last[tensor], tensor].add(float(types.tensor_bytes[before + output]))
    result = np.where(is_write, types.tensor_bytes[edges.write_tensor], 0.0)
    loops = np.flatnonzero(flow.is_loop[edges.write_node])
    written = zip(edges.write_node[loops].tolist(), storage[edges.write_tensor[loops]].tolist(), strict=True)
    result[loops] = [sum(formats.get(key, ())) for key in written]
    return result


def _remaining_casts(flow: _Flow) -> BoolArray:
    """Casts of what no loop writes for what no loop reads, such as weights, [C]."""
    casts, edges = flow.types.casts, flow.sizes.edges
    pairs = zip(edges.read_node.tolist(), edges.read_tensor.tolist(), strict=True)
    writer = dict(zip(pairs, flow.writer.tolist(), strict=True))
    cast = zip(casts.node.tolist(), casts.tensor.tolist(), strict=True)
    origin = np.array([writer.get(pair, _NOWHERE) for pair in cast], dtype=np.int64)
    result: BoolArray = ~flow.is_loop[casts.node] & ~((origin >= 0) & flow.is_loop[origin])
    return result
