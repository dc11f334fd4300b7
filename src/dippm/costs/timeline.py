"""When every piece of device memory of a forward pass or a training step is taken and given back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from dippm.costs.compiled_buffers import CompiledBuffers
from dippm.costs.edges import IndexArray
from dippm.costs.layout_copies import layout_copies
from dippm.costs.polynomial import FloatArray, evaluate, is_nonzero, pad, scale
from dippm.costs.precision import Arithmetic
from dippm.costs.sizes import GraphSizes
from dippm.costs.traffic import storage_polynomials
from dippm.costs.workload import Workload
from dippm.graph import GraphArrays, OpKind, TensorRole
from dippm.graph.codes import mark, tabulate
from dippm.graph.columns import IndexLists

__all__ = ["FirstCalls", "MemoryTimeline", "Purpose"]

_WEIGHT_ROLES = frozenset({TensorRole.PARAMETER, TensorRole.BUFFER, TensorRole.CONSTANT})
_WRITTEN_ROLES = frozenset({TensorRole.ACTIVATION, TensorRole.GRADIENT, TensorRole.CACHE})
# The scope of the loss, whose gradient begins the way back.
_LOSS_SCOPE = "loss"
_HALF = frozenset({Arithmetic.FP16, Arithmetic.BF16})


class Purpose(IntEnum):
    """What a piece of memory is for.

    ``LAYOUT_TF32`` and ``LAYOUT_HALF`` are the copies of its tensors in channels-last order that a convolution on
    tensor cores makes where images are stored channels-first; which of them exist depends on the device. Those of
    convolutions in groups, ``GROUPED_TF32`` and ``GROUPED_HALF``, are made whatever the order is. ``GRADIENT``
    is that of a weight, ``OPTIMIZER_STATE`` what the optimizer keeps from step to step, ``CACHE`` what a decoder keeps
    from token to token.
    """

    WEIGHT = 0
    INPUT = 1
    ACTIVATION = 2
    SCRATCH = 3
    LAYOUT_TF32 = 4
    LAYOUT_HALF = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    CACHE = 8
    GROUPED_TF32 = 9
    GROUPED_HALF = 10


# By whether a convolution works in groups, and whether in 16 bits.
_PURPOSE_OF_COPY = np.array(
    [[Purpose.LAYOUT_TF32, Purpose.LAYOUT_HALF], [Purpose.GROUPED_TF32, Purpose.GROUPED_HALF]], dtype=np.int8
)
_PURPOSES = {
    TensorRole.INPUT: Purpose.INPUT,
    TensorRole.GRADIENT: Purpose.GRADIENT,
    TensorRole.OPTIMIZER_STATE: Purpose.OPTIMIZER_STATE,
    TensorRole.CACHE: Purpose.CACHE,
}
_PURPOSE_OF_ROLE = tabulate(
    TensorRole, lambda role: Purpose.WEIGHT if role in _WEIGHT_ROLES else _PURPOSES.get(role, Purpose.ACTIVATION)
).astype(np.int8)


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstCalls:
    """The first node of each thread that calls a library of matrix products, -1 where none does.

    Args:
        blas: Of those that call cuBLAS; autograd's are not among them.
        lt: Of those that call cuBLASLt, as linear layers with a bias do.
        backward: Of those that autograd has call cuBLAS, in a thread of its own.
    """

    blas: int
    lt: int
    backward: int

    @classmethod
    def of(cls, sizes: GraphSizes, nodes: slice) -> FirstCalls:
        """Find them among the nodes of one graph."""
        calls = sizes.is_kind(OpKind.LINEAR, OpKind.MATMUL)[nodes]
        linear = np.flatnonzero(sizes.is_kind(OpKind.LINEAR)[nodes])
        is_biased = np.zeros_like(calls)
        is_biased[linear] = sizes.inputs(linear + nodes.start, 2) >= 0
        fills = (np.flatnonzero(sizes.is_kind(OpKind.FILL)[nodes]) + nodes.start).tolist()
        # The gradient of the loss is no operator of the model.
        starts = [node for node in fills if sizes.nodes[node].scope == _LOSS_SCOPE and not sizes.nodes[node].source_op]
        split = starts[0] - int(nodes.start) if starts else len(calls)
        return cls(
            blas=_first(calls[:split], 0), lt=_first(is_biased[:split], 0), backward=_first(calls[split:], split)
        )


def _first(is_chosen: npt.NDArray[np.bool_], start: int) -> int:
    return start + int(is_chosen.argmax()) if is_chosen.any() else -1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemoryTimeline:
    """All pieces of memory of one graph and the order in which they come and go, with the batch left open.

    Weights and inputs are there before the first node and after the last; outputs stay. What a decoder's cache held
    before the step is there before the first node as well. Every other storage is given back where the graph says so
    (``Graph.has_lifetimes``), else after the last node that uses it or one of its views. Outputs that nothing reads
    are given back at once. A cast that autocast caches stays until the forward ends, any other cast as long as its node
    runs. Where an optimizer keeps state, or gradients are kept from step to step, there
    are two steps: both are taken in the first one, and are there throughout the second.

    Args:
        purpose: What each piece is for.
        bytes_of: Bytes of each piece as polynomials of the batch.
        is_taken: Whether each piece has any bytes.
        purposes: What pieces that have any are for.
        weights: Pieces that hold weights and buffers, there from the start, in the order in which they are loaded.
        inputs: Pieces that hold the model's inputs and what its cache held before, there from the start.
        room: Pieces as large as the blocks that the inputs lie in: their own, of a cache that which it grows to. Blocks
            are larger than what they hold, and few tokens need new ones; which do would be chance.
        event_piece: Piece of each event.
        event_sign: 1 where it is taken, -1 where it is given back, 0 for the mark that begins a node's events.
        event_node: Node of each event.
        node_start: First event of each node, its mark, in each step.
        steps: How often the nodes run.
        first_calls: The nodes that call a library of products first, which keeps a workspace from then on.

    Shapes:
        P pieces, E events. purpose, is_taken: [P]; bytes_of: [P, D]; weights, inputs, room: indices into P, the last
        two of a length; event_*: [E]; node_start: [steps * n_nodes].
    """

    purpose: npt.NDArray[np.int8]
    bytes_of: FloatArray
    is_taken: npt.NDArray[np.bool_]
    purposes: frozenset[Purpose]
    weights: IndexArray
    inputs: IndexArray
    room: IndexArray
    event_piece: IndexArray
    event_sign: IndexArray
    event_node: IndexArray
    node_start: IndexArray
    steps: int
    first_calls: FirstCalls

    @property
    def has_gradients(self) -> bool:
        """Whether this is a training step."""
        return Purpose.GRADIENT in self.purposes

    @classmethod
    def from_workload(cls, workload: Workload) -> MemoryTimeline:
        """Lay out the pieces and events of a workload of one graph, in time linear in the graph."""
        (timeline,) = cls.of_each(workload)
        return timeline

    @classmethod
    def of_each(cls, workload: Workload) -> list[MemoryTimeline]:
        """The same for each graph of a workload; pieces, events and nodes are numbered by graph."""
        buffers = None
        if workload.fusion is not None:
            buffers = CompiledBuffers.of(workload.sizes, workload.types, workload.fusion)
        pieces = _Pieces.of(workload, buffers)
        arrays = workload.sizes.arrays
        is_early = _is_role(arrays, TensorRole.CACHE)
        is_early[workload.sizes.edges.write_tensor] = False
        grown = _grown(workload, is_early)
        events, steps = _events_of(workload, pieces, buffers)
        owned = [pieces.of_graph(graph) for graph in range(len(steps))]
        local = np.empty(len(pieces.purpose), dtype=np.int64)
        for own in owned:
            local[own] = np.arange(len(own))
        event_start = np.searchsorted(events.node, arrays.node_start)
        result = []
        for graph, (first, stop) in enumerate(pairwise(event_start.tolist())):
            own = owned[graph]
            tensors, nodes = (slice(*start[graph : graph + 2]) for start in (arrays.tensor_start, arrays.node_start))
            in_steps = (
                _Events(
                    node=events.node[first:stop] - nodes.start,
                    piece=local[events.piece[first:stop]],
                    sign=events.sign[first:stop],
                )
                .repeat(steps[graph])
                .without_idle(is_early[tensors])
            )
            purpose, is_owner = pieces.purpose[own], pieces.is_owner[tensors]
            is_taken = pieces.is_taken[own]
            (present,) = np.nonzero(np.bincount(purpose[is_taken]))
            of_tensors = purpose[: len(is_owner)]
            inputs = np.flatnonzero(((of_tensors == Purpose.INPUT) | is_early[tensors]) & is_owner)
            result.append(
                cls(
                    purpose=purpose,
                    bytes_of=pieces.bytes_of.take(own, axis=0),
                    is_taken=is_taken,
                    purposes=frozenset(map(Purpose, present.tolist())),
                    weights=np.flatnonzero((of_tensors == Purpose.WEIGHT) & is_owner),
                    inputs=inputs,
                    room=grown[tensors][inputs] - tensors.start,
                    event_piece=in_steps.piece,
                    event_sign=in_steps.sign,
                    event_node=in_steps.node,
                    node_start=np.flatnonzero(in_steps.sign == 0),
                    steps=steps[graph],
                    first_calls=FirstCalls.of(workload.sizes, nodes),
                )
            )
        return result

    def piece_bytes(self, batches: FloatArray, *, without: frozenset[Purpose] = frozenset()) -> FloatArray:
        """Bytes of every piece at each batch size, 0 for the purposes that are left out.

        Shapes:
            batches: [B]; result: [B, P].
        """
        values = evaluate(self.bytes_of, batches)
        if without:
            values[:, np.isin(self.purpose, [int(purpose) for purpose in without])] = 0.0
        return values


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Events:
    """Pieces that are taken and given back, as in :class:`MemoryTimeline`, [E] each."""

    node: IndexArray
    piece: IndexArray
    sign: IndexArray

    @classmethod
    def in_order(cls, stages: Sequence[tuple[IndexArray, IndexArray, int]]) -> _Events:
        """Events of one stage of each node after the other: nodes, pieces and sign of each stage."""
        nodes, pieces, signs = zip(*stages, strict=True)
        node = np.concatenate(nodes)
        stage = np.repeat(np.arange(len(stages)), [len(own) for own in nodes])
        order = np.argsort(node * len(stages) + stage, kind="stable")
        return cls(node=node[order], piece=np.concatenate(pieces)[order], sign=np.array(signs)[stage[order]])

    def repeat(self, steps: int) -> _Events:
        """The same events several times."""
        return _Events(node=np.tile(self.node, steps), piece=np.tile(self.piece, steps), sign=np.tile(self.sign, steps))

    def without_idle(self, is_there: npt.NDArray[np.bool_]) -> _Events:
        """Without those that take a tensor's piece that is there, or give back one that is not.

        Args:
            is_there: Whether each tensor's piece is there before the first event, [T].
        """
        asked = np.flatnonzero((self.piece < len(is_there)) & (self.sign != 0))
        asked = asked[np.argsort(self.piece[asked], kind="stable")]
        piece, sign = self.piece[asked], self.sign[asked]
        # Whatever an event asks for, after it that is so.
        before = np.where(is_there[piece], 1, -1)
        is_again = piece[1:] == piece[:-1]
        before[1:][is_again] = sign[:-1][is_again]
        is_kept = np.ones(len(self.piece), dtype=np.bool_)
        is_kept[asked] = sign != before
        return _Events(node=self.node[is_kept], piece=self.piece[is_kept], sign=self.sign[is_kept])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Pieces:
    """All pieces of memory of a workload's graphs.

    There is a place for each tensor (views keep theirs empty), then for each cast, then for each node one for the
    outputs that it drops, one for its scratch memory and one for its layout copies.

    Args:
        purpose: What each is for, [P].
        bytes_of: Bytes as polynomials of the batch, [P, D].
        is_taken: Whether each has any bytes, [P].
        is_owner: Whether each tensor owns its storage, [T].
        starts: First tensor, cast and node of each graph, and behind the last one, [G + 1] each.
    """

    purpose: npt.NDArray[np.int8]
    bytes_of: FloatArray
    is_taken: npt.NDArray[np.bool_]
    is_owner: npt.NDArray[np.bool_]
    starts: tuple[IndexArray, IndexArray, IndexArray]

    @classmethod
    def of(cls, workload: Workload, buffers: CompiledBuffers | None) -> _Pieces:
        arrays, types = workload.sizes.arrays, workload.types
        tensor_bytes = types.tensor_bytes if buffers is None else buffers.tensor_bytes
        is_owner = arrays.storage == np.arange(len(arrays.storage))
        owned = storage_polynomials(workload.sizes, tensor_bytes, np.arange(len(is_owner)))
        owned[~is_owner] = 0.0
        casts = scale(workload.cast_elements, types.casts.to_bytes)
        copies, is_grouped = layout_copies(workload.sizes, types)
        parts = [owned, casts, workload.dropped, workload.scratch, copies]
        width = max(part.shape[1] for part in parts)
        is_half = types.is_computed_in(*_HALF)
        bytes_of = np.concatenate([pad(part, width) for part in parts])
        return cls(
            purpose=np.concatenate(
                [
                    _PURPOSE_OF_ROLE[arrays.role],
                    np.full(len(casts) + len(is_half), Purpose.ACTIVATION, dtype=np.int8),
                    np.full(len(is_half), Purpose.SCRATCH, dtype=np.int8),
                    _PURPOSE_OF_COPY[is_grouped.astype(np.int64), is_half.astype(np.int64)],
                ]
            ),
            bytes_of=bytes_of,
            is_taken=is_nonzero(bytes_of),
            is_owner=is_owner,
            starts=(arrays.tensor_start, np.searchsorted(types.casts.node, arrays.node_start), arrays.node_start),
        )

    @property
    def firsts(self) -> tuple[int, int, int, int, int]:
        """Where the places of tensors, casts, dropped outputs, scratch memory and layout copies begin."""
        tensors, casts, nodes = (int(start[-1]) for start in self.starts)
        dropped = tensors + casts
        return 0, tensors, dropped, dropped + nodes, dropped + 2 * nodes

    def of_graph(self, graph: int) -> IndexArray:
        """The pieces of one graph, in the order in which it numbers them."""
        tensors, casts, nodes = ((int(start[graph]), int(start[graph + 1])) for start in self.starts)
        spans = zip(self.firsts, (tensors, casts, nodes, nodes, nodes), strict=True)
        return np.concatenate([np.arange(first + start, first + stop) for first, (start, stop) in spans])


def _grown(workload: Workload, is_early: npt.NDArray[np.bool_]) -> IndexArray:
    """What each tensor grows to: the cache that it is joined to, or itself, [T]."""
    sizes, edges, storage = workload.sizes, workload.sizes.edges, workload.sizes.arrays.storage
    grown = np.arange(len(storage))
    if not is_early.any():
        return grown
    joined = np.flatnonzero(is_early[storage[edges.read_tensor]] & sizes.is_kind(OpKind.CONCAT)[edges.read_node])
    old, new = storage[edges.read_tensor[joined]], storage[sizes.outputs(edges.read_node[joined])]
    is_cache = _is_role(sizes.arrays, TensorRole.CACHE)[new]
    grown[old[is_cache]] = new[is_cache]
    return grown


def _events_of(workload: Workload, pieces: _Pieces, buffers: CompiledBuffers | None) -> tuple[_Events, list[int]]:
    """What happens in one step of each graph, and in how many steps it is followed.

    Gradients of weights that are not released, and the state of an optimizer, are kept from step to step.
    """
    sizes, casts = workload.sizes, workload.types.casts
    arrays, edges = sizes.arrays, sizes.edges
    every = np.arange(len(arrays.kind), dtype=np.int64)
    release_node, released = _releases(sizes)
    is_owner, taken, given_back = pieces.is_owner, [], []
    if buffers is not None:
        is_own = ~buffers.is_buffer[released]
        release_node, released = release_node[is_own], released[is_own]
        is_owner = is_owner & ~buffers.is_buffer
        taken = [(buffers.taken_at, buffers.taken, 1)]
        given_back = [(buffers.given_back_at, buffers.given_back, -1)]
    is_state = _is_role(arrays, TensorRole.OPTIMIZER_STATE)
    is_kept = pieces.is_owner & _is_role(arrays, TensorRole.GRADIENT)
    is_kept[released] = False
    is_kept |= is_state
    steps = [2 if is_kept[first:stop].any() else 1 for first, stop in pairwise(arrays.tensor_start.tolist())]
    is_written = (is_owner & _is_role(arrays, *_WRITTEN_ROLES))[edges.write_tensor]
    is_state_read = is_state[edges.read_tensor]
    # A compiled model knows who reads a copy last.
    temporary = np.flatnonzero(~casts.is_cached | (buffers is not None))[::-1]
    _, first_cast, first_dropped, first_scratch, first_layout = pieces.firsts
    dropped, scratch, layout = (
        every[pieces.is_taken[first : first + len(every)]] for first in (first_dropped, first_scratch, first_layout)
    )
    # What happens at each node, one after the other: its mark, what is taken, what is given back.
    events = _Events.in_order(
        [
            (every, np.zeros_like(every), 0),
            (casts.node, first_cast + np.arange(len(casts)), 1),
            (edges.read_node[is_state_read], edges.read_tensor[is_state_read], 1),
            (edges.write_node[is_written], edges.write_tensor[is_written], 1),
            *taken,
            (dropped, first_dropped + dropped, 1),
            (scratch, first_scratch + scratch, 1),
            (layout, first_layout + layout, 1),
            (layout, first_layout + layout, -1),
            (scratch, first_scratch + scratch, -1),
            (dropped, first_dropped + dropped, -1),
            (casts.node[temporary], first_cast + temporary, -1),
            (release_node, released, -1),
            *given_back,
        ]
    )
    return events, steps


def _is_role(arrays: GraphArrays, *roles: TensorRole) -> npt.NDArray[np.bool_]:
    return mark(TensorRole, roles)[arrays.role]


def _releases(sizes: GraphSizes) -> tuple[IndexArray, IndexArray]:
    """Storages that are given back, and the node after which each is, in the order in which they are."""
    arrays = sizes.arrays
    storage, tensor_start = arrays.storage, arrays.tensor_start.tolist()
    releases = IndexLists.joined([graph.columns.releases for graph in sizes.graphs], arrays.tensor_start[:-1])
    node, released = releases.owner, storage[releases.values]
    node_count, tensor_count = np.diff(arrays.node_start), np.diff(arrays.tensor_start)
    has_lifetimes = np.array([graph.has_lifetimes for graph in sizes.graphs], dtype=np.bool_)
    if has_lifetimes.all():
        return node, released
    is_stated = np.repeat(has_lifetimes, node_count)[node]
    outputs = chain.from_iterable(
        [first + index for index in graph.outputs] for first, graph in zip(tensor_start, sizes.graphs, strict=False)
    )
    last_use = np.full(len(storage), -1, dtype=np.int64)
    edges = sizes.edges
    for tensors, users in ((edges.read_tensor, edges.read_node), (edges.write_tensor, edges.write_node)):
        np.maximum.at(last_use, storage[tensors], users)
    last_use[storage[np.fromiter(outputs, dtype=np.int64)]] = -1
    last_use[np.repeat(has_lifetimes, tensor_count)] = -1
    used = np.flatnonzero((last_use >= 0) & _is_role(arrays, TensorRole.ACTIVATION))
    return np.concatenate([node[is_stated], last_use[used]]), np.concatenate([released[is_stated], used])
