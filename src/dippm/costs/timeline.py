"""When every piece of device memory of a forward pass or a training step is taken and given back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import chain, compress, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dippm.costs.autocast import Casts
from dippm.costs.compiled_buffers import CompiledBuffers
from dippm.costs.edges import IndexArray
from dippm.costs.layout_copies import layout_copies
from dippm.costs.memory_events import Events, Requests, Starts, cut
from dippm.costs.polynomial import FloatArray, is_nonzero, pad, scale
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

    @property
    def in_order(self) -> tuple[int, int, int]:
        """Of cuBLAS, of cuBLASLt, and of autograd."""
        return self.blas, self.lt, self.backward

    @classmethod
    def of_each(cls, sizes: GraphSizes) -> list[FirstCalls]:
        """Find them in each graph, where nodes are numbered by graph."""
        start, stop = sizes.arrays.node_start[:-1], sizes.arrays.node_start[1:]
        calls, linear, fills = (
            np.flatnonzero(sizes.is_kind(*kinds))
            for kinds in ((OpKind.LINEAR, OpKind.MATMUL), (OpKind.LINEAR,), (OpKind.FILL,))
        )
        biased = linear[sizes.inputs(linear, 2) >= 0]
        # The gradient of the loss is no operator of the model.
        nodes = [sizes.nodes[node] for node in fills.tolist()]
        begins = [node.scope == _LOSS_SCOPE and not node.source_op for node in nodes]
        split = _first_between(fills[np.array(begins, dtype=np.bool_)], start, stop)
        split = np.where(split < 0, stop, split)
        found = (
            _first_between(calls, start, split),
            _first_between(biased, start, split),
            _first_between(calls, split, stop),
        )
        of_graphs = zip(*(np.where(node < 0, -1, node - start).tolist() for node in found), strict=True)
        return [cls(blas=blas, lt=lt, backward=backward) for blas, lt, backward in of_graphs]


def _first_between(nodes: IndexArray, start: IndexArray, stop: IndexArray) -> IndexArray:
    """The first of some ascending nodes in each stretch, -1 where none is in it.

    Shapes:
        nodes: [n]; start, stop and result: [G].
    """
    first = np.append(nodes, stop[-1:])[np.searchsorted(nodes, start)]
    result: IndexArray = np.where(first < stop, first, -1)
    return result


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
        requests: What of the events the allocator is asked for.
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
    event_sign: FloatArray
    event_node: IndexArray
    node_start: IndexArray
    requests: Requests
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
        arrays, pieces = workload.sizes.arrays, _Pieces.of(workload, buffers)
        is_early = _is_role(arrays, TensorRole.CACHE)
        is_early[workload.sizes.edges.write_tensor] = False
        grown = _grown(workload, is_early)
        once, steps = _events_of(workload, pieces, buffers)
        events = once.in_steps(steps, arrays.node_start).without_idle(is_early)
        # Pieces of a graph lie side by side from here on, those of its tensors first.
        order, piece_start = pieces.by_graph()
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        events = replace(events, piece=place.take(events.piece))
        bytes_of, is_taken = pieces.bytes_of.take(order, axis=0), pieces.is_taken.take(order)
        purpose = pieces.purpose.take(order)
        of_tensors = pieces.purpose[: len(grown)]
        weights, inputs = (
            np.flatnonzero(is_meant & pieces.is_owner)
            for is_meant in (of_tensors == Purpose.WEIGHT, (of_tensors == Purpose.INPUT) | is_early)
        )
        room = np.where(pieces.is_taken[inputs], grown[inputs], inputs)
        is_first = np.zeros(len(order), dtype=np.bool_)
        is_first[place[weights]] = is_first[place[inputs]] = True
        marks, nodes = np.flatnonzero(events.sign == 0), np.diff(arrays.node_start)
        mark_count = nodes * np.array(steps, dtype=np.int64)
        mark_start = np.append(0, np.cumsum(mark_count))
        begins = np.append(marks, len(events.sign))
        starts = Starts(event=begins[mark_start], piece=piece_start, node=arrays.node_start)
        requests = Requests.of_each(
            events,
            starts,
            last_start=begins[mark_start[1:] - nodes],
            is_taken=is_taken,
            is_first=is_first,
        )
        present = np.zeros((len(steps), len(Purpose)), dtype=np.bool_)
        present[np.repeat(np.arange(len(steps)), np.diff(piece_start))[is_taken], purpose[is_taken]] = True
        event_count = np.diff(starts.event)
        event_piece = events.piece - np.repeat(piece_start[:-1], event_count)
        event_piece[marks] = 0
        event_node = events.node - np.repeat(arrays.node_start[:-1], event_count)
        weight_start, input_start = (np.searchsorted(own, arrays.tensor_start) for own in (weights, inputs))
        of_weight, of_input = (np.repeat(arrays.tensor_start[:-1], np.diff(own)) for own in (weight_start, input_start))
        columns: dict[str, Sequence[Any]] = {
            "purpose": cut(purpose, piece_start),
            "bytes_of": cut(bytes_of, piece_start),
            "is_taken": cut(is_taken, piece_start),
            "purposes": [frozenset(compress(Purpose, is_present)) for is_present in present.tolist()],
            "weights": cut(weights - of_weight, weight_start),
            "inputs": cut(inputs - of_input, input_start),
            "room": cut(room - of_input, input_start),
            "event_piece": cut(event_piece, starts.event),
            "event_sign": cut(events.sign.astype(np.float64), starts.event),
            "event_node": cut(event_node, starts.event),
            "node_start": cut(marks - np.repeat(starts.event[:-1], mark_count), mark_start),
            "requests": requests,
            "steps": steps,
            "first_calls": FirstCalls.of_each(workload.sizes),
        }
        return [cls(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


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

    def by_graph(self) -> tuple[IndexArray, IndexArray]:
        """All pieces, those of a graph side by side, and where each graph's begin, behind the last one too.

        Shapes:
            [P] and [G + 1].
        """
        graphs = np.arange(len(self.starts[0]) - 1)
        of_kinds = [np.diff(start) for start in (*self.starts, self.starts[-1], self.starts[-1])]
        graph = np.concatenate([np.repeat(graphs, counts) for counts in of_kinds])
        return np.argsort(graph, kind="stable"), np.cumsum([0, *sum(of_kinds, np.zeros_like(graphs))])


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


def _events_of(workload: Workload, pieces: _Pieces, buffers: CompiledBuffers | None) -> tuple[Events, list[int]]:
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
    cast_end = casts.node if buffers is not None else _cast_ends(sizes, casts)
    _, first_cast, first_dropped, first_scratch, first_layout = pieces.firsts
    dropped, scratch, layout = (
        every[pieces.is_taken[first : first + len(every)]] for first in (first_dropped, first_scratch, first_layout)
    )
    # What happens at each node, one after the other: its mark, what is taken, what is given back.
    events = Events.in_order(
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
            (cast_end[temporary], first_cast + temporary, -1),
            (release_node, released, -1),
            *given_back,
        ]
    )
    return events, steps


def _cast_ends(sizes: GraphSizes, casts: Casts) -> IndexArray:
    """The node after which each cast is given back: that which it is for, or the product that its copy is for, [C]."""
    ends, edges, storage = casts.node.copy(), sizes.edges, sizes.arrays.storage
    of_copies = np.flatnonzero(sizes.is_kind(OpKind.COPY)[ends])
    if len(of_copies):
        last_read = np.zeros(len(storage), dtype=np.int64)
        np.maximum.at(last_read, storage[edges.read_tensor], edges.read_node)
        ends[of_copies] = np.maximum(ends[of_copies], last_read[storage[sizes.outputs(ends[of_copies])]])
    return ends


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
