"""What ``torch.compile`` makes one kernel of: inductor's default mode.

Matrix products, convolutions and fused attention stay calls of libraries. All else becomes loops, and loops that follow
one another run as one kernel: what passes between them stays in registers, a tensor that several of them read is read
once, and what autocast would cast on the way is written in the format that its readers take. A kernel cannot hold both
what a library call reads and what that call's result goes into, and of two reductions over different stretches the
later one waits for the whole of the earlier.

Of a training step the forward and the backward pass are compiled, each by itself. What loops of the forward pass have
made and nothing but loops of the backward pass reads is made again there, from what the first of them read; what takes
a reduction is kept. A norm goes over what it reduces once more to use it, and so does what is fused before it.

Rules after PyTorch 2.4: ``torch/_inductor`` (``lowering.py``, ``scheduler.py``), ``torch/_functorch/partitioners.py``.
Left out: written-out attention that a pattern turns into a fused kernel, loops that share no more than an input, and
constants that are folded.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.families import FAMILY_OF_KIND, WorkFamily
from dippm.costs.polynomial import FloatArray
from dippm.costs.precision import TypePlan
from dippm.costs.recomputation import Recomputation, Value
from dippm.costs.sizes import GraphSizes
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.costs.traffic import reads_twice
from dippm.graph import OpKind, TensorRole
from dippm.graph.codes import mark

__all__ = ["EAGER_PART", "Fusion", "is_reduction"]

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
# Of weights; what is not read again in a step is kept for the next or for the update.
_IS_GRADIENT = mark(TensorRole, [TensorRole.GRADIENT])
_SOFTMAX_KINDS = (OpKind.SOFTMAX, OpKind.LOG_SOFTMAX)
_NORM_KINDS = (
    OpKind.GROUP_NORM,
    OpKind.INSTANCE_NORM,
    OpKind.LAYER_NORM,
    OpKind.RMS_NORM,
)
# A concatenation of more is built in memory; what reads one of fewer picks from its parts.
_MOST_PICKED = 4
# Loops with as many operators between them stay apart: what they share would be in memory for so long.
_FAR = 64
_NOWHERE = -1
_FORWARD = 0
#: Part of the nodes that are not compiled.
EAGER_PART = -1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Fusion:
    """The kernels of a compiled model, and what they move.

    Args:
        kernel: Kernel of each node, the number of its last node; -1 for views.
        read_bytes: Bytes for each element of each read of :class:`~dippm.costs.edges.Edges`; 0 where the kernel has it.
        written_bytes: The same of each write, all formats together; 0 where nothing outside of the kernel reads it.
        is_cast: Which casts of autocast are still kernels of their own.
        is_loop: Which nodes are loops, all others being calls of libraries or views.
        part: Which nodes are compiled together, see :meth:`of`.
        owner: The tensor whose storage each read is from: what is made again is read from where it is made.
        writer: The node that wrote that, -1 where none did.
        is_joined: Which reads are of what a loop has written to its place in a concatenation by itself.
        kept_storage: Storages that nodes of a backward pass read beside, to make values again.
        kept_reader: Those nodes.

    Shapes:
        kernel, is_loop, part: [n_nodes]; read_bytes, owner, writer, is_joined: [E]; written_bytes: [W]; is_cast: [C];
        kept_storage, kept_reader: one for each.
    """

    kernel: IndexArray
    read_bytes: FloatArray
    written_bytes: FloatArray
    is_cast: BoolArray
    is_loop: BoolArray
    part: IndexArray
    owner: IndexArray
    writer: IndexArray
    is_joined: BoolArray
    kept_storage: IndexArray
    kept_reader: IndexArray

    @classmethod
    def of(
        cls,
        sizes: GraphSizes,
        types: TypePlan,
        part: IndexArray | None = None,
        *,
        software: Software = DEFAULT_SOFTWARE,
    ) -> Fusion:
        """Fuse the operators of one or several graphs.

        Args:
            sizes: The graphs.
            types: Their number formats.
            part: Which nodes are compiled together, [n_nodes]: 0 in the forward pass, 1 in the backward pass, -1 what
                stays as it is. None where all are of a forward pass.
            software: The release that compiles them.
        """
        if part is None:
            part = np.zeros(len(sizes.arrays.kind), dtype=np.int64)
        flow = _Flow.of(sizes, types, part, software)
        return cls(
            kernel=flow.kernel,
            read_bytes=np.where(flow.is_read & ~_is_repeated(flow), flow.element_bytes * _passes(flow), 0.0),
            written_bytes=_written_bytes(flow),
            is_cast=_remaining_casts(flow),
            is_loop=flow.is_loop,
            part=part,
            owner=flow.owner,
            writer=flow.writer,
            is_joined=flow.is_joined,
            kept_storage=np.array([storage for (_, storage), _, _ in flow.kept], dtype=np.int64),
            kept_reader=np.array([reader for _, reader, _ in flow.kept], dtype=np.int64),
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
        is_inside: Which reads are of what their own kernel has made.
        is_read: Which reads go to memory.
        is_joined: Which reads are of what is written to its place in a concatenation at once.
        kept: What is read beside, to make values again; see :class:`~dippm.costs.recomputation.Recomputation`.

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
    is_inside: BoolArray
    is_read: BoolArray
    is_joined: BoolArray
    kept: tuple[tuple[Value, int, float], ...] = ()

    @classmethod
    def of(cls, sizes: GraphSizes, types: TypePlan, part: IndexArray, software: Software) -> _Flow:
        edges, is_loop = sizes.edges, _IS_LOOP[sizes.arrays.kind] & (part != EAGER_PART)
        if software.scatters_losses:
            # One element of a row, and zeros.
            is_loop &= ~_has_function(sizes, OpKind.ELEMENTWISE_GRAD, "nll_loss")
        writer = _writers(sizes)
        kernel = _kernels(sizes, writer, is_loop, part)
        by_loop, from_loop = is_loop[edges.read_node], (writer >= 0) & is_loop[writer]
        is_inside = by_loop & from_loop & (kernel[edges.read_node] == kernel[writer])
        if software.remakes_softmax:
            # A cross-entropy makes the one element of a row that it picks from the scores.
            is_loss = _has_function(sizes, OpKind.GATHER, "nll_loss")
            is_inside |= (by_loop & from_loop) & is_loss[edges.read_node] & sizes.is_kind(*_SOFTMAX_KINDS)[writer]
        # Loops write what they make for a concatenation that is built to its place in it at once.
        is_built = sizes.is_kind(OpKind.CONCAT) & (kernel == np.arange(len(kernel)))
        is_joined = is_built[edges.read_node] & from_loop
        is_view = sizes.is_kind(OpKind.VIEW)[edges.read_node]
        flow = cls(
            sizes=sizes,
            types=types,
            is_loop=is_loop,
            kernel=kernel,
            writer=writer,
            owner=sizes.arrays.storage[edges.read_tensor],
            element_bytes=np.where(by_loop, types.tensor_bytes[edges.read_tensor], types.read_bytes),
            is_inside=is_inside,
            is_read=~is_inside & ~is_joined & ~is_view,
            is_joined=is_joined,
        )
        return _with_loops_made_again(flow, part, software) if part.any() else flow


def _with_loops_made_again(flow: _Flow, part: IndexArray, software: Software) -> _Flow:
    """The same where loops of the backward pass make again what is not kept for them."""
    sizes = flow.sizes
    # Of a norm mean and variance are kept, of a softmax the largest and the sum of each row, which are few.
    remade = (*_NORM_KINDS, *_SOFTMAX_KINDS) if software.remakes_softmax else _NORM_KINDS
    is_kept = is_reduction(sizes) & ~sizes.is_kind(*remade)
    again = Recomputation.of(
        sizes,
        part=part,
        is_loop=flow.is_loop,
        is_cheap=flow.is_loop & ~is_kept & ~sizes.is_kind(*_WINDOW_KINDS, OpKind.CONCAT),
        writer=flow.writer,
        owner=flow.owner,
        element_bytes=flow.element_bytes,
        reach=software.recomputation_reach,
    )
    return replace(
        flow,
        writer=flow.writer[again.source],
        owner=flow.owner[again.source],
        element_bytes=flow.element_bytes[again.source],
        is_read=flow.is_read & (again.source >= 0),
        kept=again.kept,
    )


def _has_function(sizes: GraphSizes, kind: OpKind, function: str) -> BoolArray:
    """Which nodes of a kind compute a function."""
    return sizes.is_kind(kind) & sizes.has_function(function)


def _first_reads(sizes: GraphSizes) -> list[int]:
    """The first read of each node, and the end of those of the last one."""
    first: list[int] = np.searchsorted(sizes.edges.read_node, np.arange(len(sizes.arrays.kind) + 1)).tolist()
    return first


def _passes(flow: _Flow) -> FloatArray:
    """How often each read is read, [E]: twice before a norm that goes over what its own kernel has made twice."""
    by, is_twice = flow.sizes.edges.read_node, reads_twice(flow.sizes)
    is_before = np.zeros(len(is_twice), dtype=np.bool_)
    inside = np.flatnonzero(flow.is_inside)[::-1]
    for reader, writer in zip(by[inside].tolist(), flow.writer[inside].tolist(), strict=True):
        is_before[writer] |= is_twice[reader] or is_before[reader]
    # A norm's own reads are counted twice already.
    return np.where((is_before & ~is_twice)[by], 2.0, 1.0)


def _writers(sizes: GraphSizes) -> IndexArray:
    """The node that last wrote what each read reads, -1 where none did, [E]."""
    edges, storage = sizes.edges, sizes.arrays.storage.tolist()
    is_view = sizes.is_kind(OpKind.VIEW).tolist()
    read, written = edges.read_tensor.tolist(), edges.write_tensor.tolist()
    last = [_NOWHERE] * len(storage)
    result: list[int] = []
    reads = pairwise(_first_reads(sizes))
    writes = pairwise(edges.output_start.tolist())
    for node, ((first, stop), (first_write, last_write)) in enumerate(zip(reads, writes, strict=True)):
        result += [last[storage[tensor]] for tensor in read[first:stop]]
        if not is_view[node]:
            for tensor in written[first_write:last_write]:
                last[storage[tensor]] = node
    return np.array(result, dtype=np.int64)


def is_reduction(sizes: GraphSizes) -> BoolArray:
    """Which nodes reduce; batch norm does where it takes the statistics of the batch."""
    result: BoolArray = _IS_REDUCTION[sizes.arrays.kind] | reads_twice(sizes)
    return result


def _kernels(sizes: GraphSizes, writer: IndexArray, loops: BoolArray, parts: IndexArray) -> IndexArray:
    """Kernel of each node, [n_nodes]: every loop runs as late as those that read it let it."""
    edges = sizes.edges
    is_view, is_loop, part = sizes.is_kind(OpKind.VIEW).tolist(), loops.tolist(), parts.tolist()
    reduces, is_window = is_reduction(sizes).tolist(), sizes.is_kind(*_WINDOW_KINDS).tolist()
    is_built = (sizes.is_kind(OpKind.CONCAT) & (np.diff(edges.input_start) > _MOST_PICKED)).tolist()
    stretches, writers, place = _stretches(sizes), writer.tolist(), np.cumsum(~sizes.is_kind(OpKind.VIEW)).tolist()
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
        joined = {
            kernel
            for kernel, waits in behind
            if is_loop[kernel]
            and not waits
            and after[kernel] == after[node]
            and part[kernel] == part[node]
            and place[kernel] - place[node] <= _FAR
        }
        if reduces[node]:
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
    for value, _, width in flow.kept:
        formats[value].add(width)
    is_write = ~is_view[edges.write_node]
    # Of several writes of a tensor the last one stays.
    last = dict(zip(storage[edges.write_tensor[is_write]].tolist(), edges.write_node[is_write].tolist(), strict=True))
    tensor_start = sizes.arrays.tensor_start.tolist()
    outputs = [
        first + output for graph, first in zip(sizes.graphs, tensor_start, strict=False) for output in graph.outputs
    ]
    outputs += np.flatnonzero(_IS_GRADIENT[sizes.arrays.role]).tolist()
    for output in outputs:
        tensor = int(storage[output])
        if tensor in last:
            formats[last[tensor], tensor].add(float(types.tensor_bytes[output]))
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
