"""When every piece of device memory of a forward pass or a training step is taken and given back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.polynomial import FloatArray, evaluate, is_nonzero, pad
from dippm.costs.precision import Arithmetic
from dippm.costs.sizes import GraphSizes
from dippm.costs.traffic import storage_polynomials
from dippm.costs.workload import Workload
from dippm.graph import Graph, GraphArrays, Node, OpKind, TensorRole
from dippm.graph.codes import mark, tabulate

__all__ = ["MemoryTimeline", "Purpose"]

_WEIGHT_ROLES = frozenset({TensorRole.PARAMETER, TensorRole.BUFFER, TensorRole.CONSTANT})
_WRITTEN_ROLES = frozenset({TensorRole.ACTIVATION, TensorRole.GRADIENT, TensorRole.CACHE})
_CONVOLUTIONS = frozenset({OpKind.CONV, OpKind.CONV_TRANSPOSE, OpKind.CONV_WEIGHT_GRAD})
_HALF = frozenset({Arithmetic.FP16, Arithmetic.BF16})


class Purpose(IntEnum):
    """What a piece of memory is for.

    ``LAYOUT_TF32`` and ``LAYOUT_HALF`` are the copies of its tensors in channels-last order that a convolution on
    tensor cores makes where images are stored channels-first; which of them exist depends on the device. ``GRADIENT``
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


_PURPOSES = {
    TensorRole.INPUT: Purpose.INPUT,
    TensorRole.GRADIENT: Purpose.GRADIENT,
    TensorRole.OPTIMIZER_STATE: Purpose.OPTIMIZER_STATE,
    TensorRole.CACHE: Purpose.CACHE,
}
_PURPOSE_OF_ROLE = tabulate(
    TensorRole, lambda role: Purpose.WEIGHT if role in _WEIGHT_ROLES else _PURPOSES.get(role, Purpose.ACTIVATION)
).astype(np.int8)


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
        weights: Pieces that hold weights and buffers, there from the start, in the order in which they are loaded.
        inputs: Pieces that hold the model's inputs and what its cache held before, there from the start.
        event_piece: Piece of each event.
        event_sign: 1 where it is taken, -1 where it is given back, 0 for the mark that begins a node's events.
        event_node: Node of each event.
        node_start: First event of each node, its mark, in each step.
        steps: How often the nodes run.
        runs_blas: Whether any node calls cuBLAS.

    Shapes:
        P pieces, E events. purpose: [P]; bytes_of: [P, D]; weights, inputs: indices into P; event_*: [E];
        node_start: [steps * n_nodes].
    """

    purpose: npt.NDArray[np.int8]
    bytes_of: FloatArray
    weights: IndexArray
    inputs: IndexArray
    event_piece: IndexArray
    event_sign: IndexArray
    event_node: IndexArray
    node_start: IndexArray
    steps: int
    runs_blas: bool

    @classmethod
    def from_workload(cls, workload: Workload) -> MemoryTimeline:
        """Lay out the pieces and events of a workload's graph, in time linear in the graph."""
        sizes, casts = workload.sizes, workload.types.casts
        arrays, edges, elements = sizes.arrays, sizes.edges, workload.cast_elements
        count, every = len(arrays.storage), np.arange(len(arrays.kind), dtype=np.int64)

        # Pieces: one place per tensor (views keep theirs empty), then casts, dropped outputs, scratch, layout copies.
        first_cast = count
        first_dropped = first_cast + len(casts)
        first_scratch = first_dropped + len(every)
        first_layout = first_scratch + len(every)
        is_owner = arrays.storage == np.arange(count)
        owned = storage_polynomials(sizes, workload.types.tensor_bytes)
        owned[~is_owner] = 0.0
        parts = [
            owned,
            elements * casts.to_bytes[:, None],
            workload.dropped,
            workload.scratch,
            _layout_copies(workload),
        ]
        width = max(part.shape[1] for part in parts)
        bytes_of = np.concatenate([pad(part, width) for part in parts])
        purpose = np.full(len(bytes_of), Purpose.ACTIVATION, dtype=np.int8)
        purpose[:count] = _PURPOSE_OF_ROLE[arrays.role]
        purpose[first_scratch:first_layout] = Purpose.SCRATCH
        is_half = workload.types.is_computed_in(*_HALF)
        purpose[first_layout:] = np.where(is_half, Purpose.LAYOUT_HALF, Purpose.LAYOUT_TF32)

        is_early = _is_role(arrays, TensorRole.CACHE)
        is_early[edges.write_tensor] = False
        release_node, released = _releases(sizes)
        is_state = _is_role(arrays, TensorRole.OPTIMIZER_STATE)
        is_gradient = is_owner & _is_role(arrays, TensorRole.GRADIENT)
        # The gradient of a weight may outlive the step.
        is_gradient[released] = False
        steps = 2 if is_state.any() or is_gradient.any() else 1
        is_written = (is_owner & _is_role(arrays, *_WRITTEN_ROLES))[edges.write_tensor]
        is_state_read = is_state[edges.read_tensor] & (steps > 1)
        temporary = np.flatnonzero(~casts.is_cached)[::-1]
        is_taken = is_nonzero(bytes_of)
        dropped, scratch, layout = (
            every[is_taken[first : first + len(every)]] for first in (first_dropped, first_scratch, first_layout)
        )
        # What happens at each node, one after the other: its mark, what is taken, what is given back.
        events = _Events.in_order(
            [
                (every, np.zeros_like(every), 0),
                (casts.node, first_cast + np.arange(len(casts)), 1),
                (edges.read_node[is_state_read], edges.read_tensor[is_state_read], 1),
                (edges.write_node[is_written], edges.write_tensor[is_written], 1),
                (dropped, first_dropped + dropped, 1),
                (scratch, first_scratch + scratch, 1),
                (layout, first_layout + layout, 1),
                (layout, first_layout + layout, -1),
                (scratch, first_scratch + scratch, -1),
                (dropped, first_dropped + dropped, -1),
                (casts.node[temporary], first_cast + temporary, -1),
                (release_node, released, -1),
            ]
        )
        events = events.repeat(steps).without_idle(is_early)
        is_given = purpose[:count] == Purpose.INPUT
        return cls(
            purpose=purpose,
            bytes_of=bytes_of,
            weights=np.flatnonzero((purpose[:count] == Purpose.WEIGHT) & is_owner),
            inputs=np.flatnonzero((is_given | is_early) & is_owner),
            event_piece=events.piece,
            event_sign=events.sign,
            event_node=events.node,
            node_start=np.flatnonzero(events.sign == 0),
            steps=steps,
            runs_blas=bool(sizes.is_kind(OpKind.LINEAR, OpKind.MATMUL).any()),
        )

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


def _is_role(arrays: GraphArrays, *roles: TensorRole) -> npt.NDArray[np.bool_]:
    return mark(TensorRole, roles)[arrays.role]


def _releases(sizes: GraphSizes) -> tuple[IndexArray, IndexArray]:
    """Storages that are given back, and the node after which each is, in the order in which they are."""
    graph, storage, edges = sizes.graph, sizes.arrays.storage, sizes.edges
    if graph.has_lifetimes:
        lists = [node.releases for node in graph.nodes]
        released = np.array([index for indices in lists for index in indices], dtype=np.int64)
        return np.repeat(np.arange(len(lists)), [len(indices) for indices in lists]), storage[released]
    last_use = np.full(len(storage), -1, dtype=np.int64)
    for tensor, node in ((edges.read_tensor, edges.read_node), (edges.write_tensor, edges.write_node)):
        np.maximum.at(last_use, storage[tensor], node)
    last_use[storage[np.array(graph.outputs, dtype=np.int64)]] = -1
    released = np.flatnonzero((last_use >= 0) & _is_role(sizes.arrays, TensorRole.ACTIVATION))
    return last_use[released], released


def _layout_copies(workload: Workload) -> FloatArray:
    """Bytes of the channels-last copies that each convolution would make on tensor cores.

    An estimate, not a rule of the library: cuDNN's tensor-core kernels work on channels-last data, so that
    channels-first inputs and weights are transposed into workspace first. A filter of one pixel is a matrix product,
    which reads channels-first images as they are, and depthwise convolutions have kernels of their own.

    Of eight such rules none tells better which published inferences fitted two 24 GiB cards and which did not
    (benchmark results of pytorch-image-models, AMP, channels-first, PyTorch 2.4; half of the models): it calls 89 % of
    the batches at the border right at one threshold. Without any copies that is 86 %, with copies of all that every
    convolution reads and writes 85 %.
    """
    sizes, types = workload.sizes, workload.types
    graph, edges = sizes.graph, sizes.edges
    is_chosen = sizes.is_kind(*_CONVOLUTIONS) & types.is_computed_in(Arithmetic.TF32, *_HALF)
    convolutions = np.flatnonzero(is_chosen)
    is_chosen[convolutions] = [_transposes(graph.nodes[position], graph) for position in convolutions.tolist()]
    result = np.zeros((len(graph.nodes), sizes.elements.shape[1]))
    read = np.flatnonzero(is_chosen[edges.read_node] & (edges.read_position < 2))
    np.add.at(result, edges.read_node[read], sizes.elements[edges.read_tensor[read]] * types.read_bytes[read, None])
    return result


def _transposes(node: Node, graph: Graph) -> bool:
    """Whether a convolution has a filter of more than one pixel and groups of more than one channel."""
    kernel, groups = node.attributes.get("kernel"), node.attributes.get("groups", 1)
    has_pixels = not isinstance(kernel, tuple) or max(kernel) > 1
    return has_pixels and (groups == 1 or graph.tensors[node.inputs[0]].shape[1].at(1) != groups)
