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

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray, last_writes
from dippm.costs.families import FAMILY_OF_KIND, WorkFamily
from dippm.costs.loop_kernels import NOWHERE, Loops
from dippm.costs.numbering import is_first, number_rows, number_values
from dippm.costs.polynomial import FloatArray, evaluate
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
            # Under autocast a cast stands between.
            is_cast = sizes.is_kind(OpKind.CAST)
            is_loss[writer[is_loss[edges.read_node] & is_cast[writer] & from_loop]] = True
            is_made = sizes.is_kind(*_SOFTMAX_KINDS) | is_cast
            is_inside |= (by_loop & from_loop) & is_loss[edges.read_node] & is_made[writer]
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


def _passes(flow: _Flow) -> FloatArray:
    """How often each read is read, [E]: twice before a norm that goes over what its own kernel has made twice."""
    by, is_twice = flow.sizes.edges.read_node, reads_twice(flow.sizes)
    is_before = np.zeros(len(is_twice), dtype=np.bool_)
    if not is_twice.any():
        return np.ones(len(by))
    inside = np.flatnonzero(flow.is_inside)[::-1]
    for reader, writer in zip(by[inside].tolist(), flow.writer[inside].tolist(), strict=True):
        is_before[writer] |= is_twice[reader] or is_before[reader]
    # A norm's own reads are counted twice already.
    return np.where((is_before & ~is_twice)[by], 2.0, 1.0)


def _writers(sizes: GraphSizes) -> IndexArray:
    """The node that last wrote what each read reads, -1 where none did, [E]."""
    edges, storage = sizes.edges, sizes.arrays.storage
    is_written = ~sizes.is_kind(OpKind.VIEW)[edges.write_node]
    node = edges.write_node[is_written]
    last = last_writes(
        storage[edges.write_tensor[is_written]], node, storage[edges.read_tensor], edges.read_node, values=len(storage)
    )
    return np.append(node, NOWHERE)[last]


def is_reduction(sizes: GraphSizes) -> BoolArray:
    """Which nodes reduce; batch norm does where it takes the statistics of the batch."""
    result: BoolArray = _IS_REDUCTION[sizes.arrays.kind] | reads_twice(sizes)
    return result


def _kernels(sizes: GraphSizes, writer: IndexArray, is_loop: BoolArray, part: IndexArray) -> IndexArray:
    """Kernel of each node, [n_nodes]."""
    loops = Loops(
        reader=sizes.edges.read_node,
        writer=writer,
        is_view=sizes.is_kind(OpKind.VIEW),
        is_loop=is_loop,
        is_built=sizes.is_kind(OpKind.CONCAT) & (np.diff(sizes.edges.input_start) > _MOST_PICKED),
        is_window=sizes.is_kind(*_WINDOW_KINDS),
        reduces=is_reduction(sizes),
        part=part,
        # How many numbers there are of what is reduced.
        stretch=number_rows(sizes.elements_of(sizes.inputs(np.arange(len(part), dtype=np.int64), 0))),
    )
    return loops.join()


def _is_repeated(flow: _Flow) -> BoolArray:
    """Which reads are of what their kernel has read already, [E]: a tensor again, or part of one that it read whole."""
    sizes, tensor = flow.sizes, flow.sizes.edges.read_tensor
    kernel, count = flow.kernel[sizes.edges.read_node], len(sizes.arrays.storage)
    elements = evaluate(sizes.elements, np.ones(1))[0]
    is_whole = elements[tensor] >= elements[flow.owner]
    of_owner, of_tensor = kernel * count + flow.owner, kernel * count + tensor
    whole, part = np.flatnonzero(flow.is_read & is_whole), np.flatnonzero(flow.is_read & ~is_whole)
    numbers = number_values(np.concatenate([of_owner[whole], of_owner[part]]))
    of_whole, of_part = numbers[: len(whole)], numbers[len(whole) :]
    # Those of what is read whole come first.
    part = part[of_part > of_whole.max(initial=-1)]
    is_repeated = np.ones(len(tensor), dtype=np.bool_)
    is_repeated[whole[is_first(of_whole)]] = False
    is_repeated[part[is_first(number_values(of_tensor[part]))]] = False
    return is_repeated


def _written_bytes(flow: _Flow) -> FloatArray:
    """Bytes for each element of each write, [W]: of loops those of every format in which it is read from memory."""
    sizes, types, edges = flow.sizes, flow.types, flow.sizes.edges
    storage, count = sizes.arrays.storage, len(sizes.arrays.storage)
    is_write = ~sizes.is_kind(OpKind.VIEW)[edges.write_node]
    # Of several writes of a tensor the last one stays.
    last = np.full(count, NOWHERE)
    last[storage[edges.write_tensor[is_write]]] = edges.write_node[is_write]
    tensor_start = sizes.arrays.tensor_start.tolist()
    outputs = [
        first + output for graph, first in zip(sizes.graphs, tensor_start, strict=False) for output in graph.outputs
    ]
    seen = np.concatenate([np.array(outputs, dtype=np.int64), np.flatnonzero(_IS_GRADIENT[sizes.arrays.role])])
    seen = seen[last[storage[seen]] >= 0]
    is_read = flow.is_read & (flow.writer >= 0)
    kept = np.array([node * count + tensor for (node, tensor), _, _ in flow.kept], dtype=np.int64)
    keys = np.concatenate(
        [flow.writer[is_read] * count + flow.owner[is_read], kept, last[storage[seen]] * count + storage[seen]]
    )
    widths = np.concatenate(
        [flow.element_bytes[is_read], [width for _, _, width in flow.kept], types.tensor_bytes[seen]]
    )
    loops = np.flatnonzero(flow.is_loop[edges.write_node])
    result = np.where(is_write, types.tensor_bytes[edges.write_tensor], 0.0)
    result[loops] = _sum_distinct(keys, widths, edges.write_node[loops] * count + storage[edges.write_tensor[loops]])
    return result


def _sum_distinct(keys: IndexArray, values: FloatArray, asked: IndexArray) -> FloatArray:
    """The sum of the values that come with each key that is asked for, equal ones once; 0 for others."""
    numbers = number_values(np.concatenate([keys, asked]))
    of_keys, of_asked = numbers[: len(keys)], numbers[len(keys) :]
    chosen = is_first(number_rows(np.stack([of_keys, values.view(np.int64)], axis=1)))
    sums = np.bincount(of_keys[chosen], values[chosen], minlength=int(numbers.max(initial=-1)) + 1)
    return np.asarray(sums[of_asked], dtype=np.float64)


def _remaining_casts(flow: _Flow) -> BoolArray:
    """Casts of what no loop writes for what no loop reads, such as weights, [C]: of equal ones the first."""
    casts, edges, count = flow.types.casts, flow.sizes.edges, len(flow.sizes.arrays.storage)
    reads, asked = edges.read_node * count + edges.read_tensor, casts.node * count + casts.tensor
    numbers = number_values(np.concatenate([reads, asked]))
    writer_of = np.full(len(numbers), NOWHERE)
    writer_of[numbers[: len(reads)]] = flow.writer
    writer = writer_of[numbers[len(reads) :]]
    result: BoolArray = ~flow.is_loop[casts.node] & ~((writer >= 0) & flow.is_loop[writer])
    (left,) = np.nonzero(result)
    result[left] = is_first(number_rows(np.stack([casts.tensor, casts.to_format, writer], axis=1)[left]))
    return result
