"""When every piece of device memory of a forward pass or a training step is taken and given back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.polynomial import FloatArray, evaluate, pad
from dippm.costs.precision import Arithmetic
from dippm.costs.traffic import storage_polynomials
from dippm.costs.workload import Workload
from dippm.graph import Graph, Node, OpKind, TensorRole

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
        graph, arrays = workload.sizes.graph, workload.sizes.arrays
        count, nodes = len(graph.tensors), graph.nodes
        storage = arrays.storage.tolist()
        casts, elements = workload.types.casts, workload.cast_elements

        # Pieces: one place per tensor (views keep theirs empty), then casts, dropped outputs, scratch, layout copies.
        first_cast = count
        first_dropped = first_cast + len(casts)
        first_scratch = first_dropped + len(nodes)
        first_layout = first_scratch + len(nodes)
        owned = storage_polynomials(workload.sizes, workload.types.tensor_bytes)
        owned[arrays.storage != np.arange(count)] = 0.0
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
        purpose[:count] = [_purpose(tensor.role) for tensor in graph.tensors]
        purpose[first_scratch:first_layout] = Purpose.SCRATCH
        purpose[first_layout:] = [
            Purpose.LAYOUT_HALF if arithmetic in _HALF else Purpose.LAYOUT_TF32
            for arithmetic in workload.types.arithmetic
        ]

        is_owner = np.zeros(len(bytes_of), dtype=np.bool_)
        is_owner[:count] = arrays.storage == np.arange(count)
        is_taken: list[bool] = np.any(bytes_of, axis=1).tolist()
        casts_of: dict[int, list[int]] = {}
        for cast, node in enumerate(casts.node.tolist()):
            casts_of.setdefault(node, []).append(cast)
        is_cached = casts.is_cached.tolist()
        releases = _releases(graph, storage)
        owned_by_graph = [tensor.role in _WRITTEN_ROLES for tensor in graph.tensors]
        is_state = [tensor.role is TensorRole.OPTIMIZER_STATE for tensor in graph.tensors]
        steps = 1 + (any(is_state) or _keeps_gradients(graph, storage, releases))
        is_early = np.array([tensor.role is TensorRole.CACHE for tensor in graph.tensors], dtype=np.bool_)
        is_early[[index for node in nodes for index in node.outputs]] = False
        is_live: list[bool] = is_early.tolist()
        is_given = purpose == Purpose.INPUT
        is_given[:count] |= is_early
        piece: list[int] = []
        sign: list[int] = []
        node_start = []
        for position, node in list(enumerate(nodes)) * steps:
            node_start.append(len(piece))
            piece.append(0)
            sign.append(0)
            temporary = []
            for cast in casts_of.get(position, ()):
                piece.append(first_cast + cast)
                sign.append(1)
                if not is_cached[cast]:
                    temporary.append(first_cast + cast)
            for index in node.inputs if steps > 1 else ():
                if index >= 0 and is_state[index] and not is_live[index]:
                    is_live[index] = True
                    piece.append(index)
                    sign.append(1)
            for index in node.outputs:
                if storage[index] == index and owned_by_graph[index] and not is_live[index]:
                    is_live[index] = True
                    piece.append(index)
                    sign.append(1)
            for start in (first_dropped, first_scratch, first_layout):
                if is_taken[start + position]:
                    temporary.append(start + position)
                    piece.append(start + position)
                    sign.append(1)
            for index in (*reversed(temporary), *releases[position]):
                if index >= count or is_live[index]:
                    piece.append(index)
                    sign.append(-1)
                    if index < count:
                        is_live[index] = False
        lengths = [stop - start for start, stop in pairwise([*node_start, len(piece)])]
        return cls(
            purpose=purpose,
            bytes_of=bytes_of,
            weights=np.flatnonzero((purpose == Purpose.WEIGHT) & is_owner),
            inputs=np.flatnonzero(is_given & is_owner),
            event_piece=np.array(piece, dtype=np.int64),
            event_sign=np.array(sign, dtype=np.int64),
            event_node=np.repeat(np.tile(np.arange(len(nodes), dtype=np.int64), steps), lengths),
            node_start=np.array(node_start, dtype=np.int64),
            steps=steps,
            runs_blas=any(node.kind in (OpKind.LINEAR, OpKind.MATMUL) for node in nodes),
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


def _purpose(role: TensorRole) -> Purpose:
    if role in _WEIGHT_ROLES:
        return Purpose.WEIGHT
    return _PURPOSES.get(role, Purpose.ACTIVATION)


def _releases(graph: Graph, storage: list[int]) -> list[list[int]]:
    """For each node the storages that are given back after it."""
    result: list[list[int]] = [[] for _ in graph.nodes]
    if graph.has_lifetimes:
        for position, node in enumerate(graph.nodes):
            result[position] = [storage[index] for index in node.releases]
        return result
    last_use = [-1] * len(storage)
    for position, node in enumerate(graph.nodes):
        for index in (*node.inputs, *node.outputs):
            if index >= 0:
                last_use[storage[index]] = position
    for index in graph.outputs:
        last_use[storage[index]] = -1
    for index, position in enumerate(last_use):
        if position >= 0 and graph.tensors[index].role is TensorRole.ACTIVATION:
            result[position].append(index)
    return result


def _keeps_gradients(graph: Graph, storage: list[int], releases: list[list[int]]) -> bool:
    """Whether the gradient of a weight outlives the step."""
    gradients = {
        index
        for index, tensor in enumerate(graph.tensors)
        if tensor.role is TensorRole.GRADIENT and storage[index] == index
    }
    return not gradients <= {index for indices in releases for index in indices}


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
    is_chosen = np.array(
        [
            node.kind in _CONVOLUTIONS
            and _transposes(node, graph)
            and (arithmetic is Arithmetic.TF32 or arithmetic in _HALF)
            for node, arithmetic in zip(graph.nodes, types.arithmetic, strict=True)
        ],
        dtype=np.bool_,
    )
    result = np.zeros((len(graph.nodes), sizes.elements.shape[1]))
    read = np.flatnonzero(is_chosen[edges.read_node] & (edges.read_position < 2))
    np.add.at(result, edges.read_node[read], sizes.elements[edges.read_tensor[read]] * types.read_bytes[read, None])
    return result


def _transposes(node: Node, graph: Graph) -> bool:
    """Whether a convolution has a filter of more than one pixel and groups of more than one channel."""
    kernel, groups = node.attributes.get("kernel"), node.attributes.get("groups", 1)
    has_pixels = not isinstance(kernel, tuple) or max(kernel) > 1
    return has_pixels and (groups == 1 or graph.tensors[node.inputs[0]].shape[1].at(1) != groups)
