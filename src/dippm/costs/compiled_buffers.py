"""Where a compiled model keeps what passes between its kernels, and how long.

Inductor takes a buffer right before the kernel that writes it and gives it back after the last one that reads it. A
loop writes to the place of what it reads once and last, where both are of one size and format. A buffer of the size and
format of one that was given back takes that one's memory, so that nobody else has it in between; what convolutions and
fused attention return is memory of their own, which others may take over. What the forward pass keeps for the backward
pass is an input there: it is given back, and nothing takes its place. Gradients are all there when it ends, and only
then added to those of earlier passes.

This is not how compiled models fill a card at inference: replayed so, published batches that failed would need six
tenths of the card in the middle. The eager replay is nearer there.

Rules after PyTorch 2.4: ``torch/_inductor/codegen/wrapper.py`` and ``scheduler.py``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.fusion import EAGER_PART, Fusion, is_reduction
from dippm.costs.numbering import number_rows
from dippm.costs.polynomial import FloatArray
from dippm.costs.precision import TypePlan
from dippm.costs.sizes import GraphSizes
from dippm.costs.traffic import storage_polynomials
from dippm.graph import OpKind, TensorRole
from dippm.graph.codes import mark

__all__ = ["CompiledBuffers"]

BoolArray = npt.NDArray[np.bool_]

_IS_ACTIVATION = mark(TensorRole, [TensorRole.ACTIVATION])
# Library calls that write to a buffer that they are given.
_WRITING_KINDS = (OpKind.LINEAR, OpKind.MATMUL)
_NOWHERE = -1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CompiledBuffers:
    """The buffers of compiled graphs.

    Args:
        is_buffer: Which tensors own a storage that the compiler decides about; its views share it.
        tensor_bytes: Bytes for each element of each tensor's storage; 0 for what never leaves its kernel.
        taken_at: The node at which memory is taken for each of ``taken``, the last one of its kernel.
        taken: Storages that take memory; others use that of one of these.
        given_back_at: The node after which memory is given back.
        given_back: Storages whose memory is given back.

    Shapes:
        is_buffer, tensor_bytes: [T]; the others: one for each event.
    """

    is_buffer: BoolArray
    tensor_bytes: FloatArray
    taken_at: IndexArray
    taken: IndexArray
    given_back_at: IndexArray
    given_back: IndexArray

    @classmethod
    def of(cls, sizes: GraphSizes, types: TypePlan, fusion: Fusion) -> CompiledBuffers:
        """Lay out the buffers of one or several graphs, in time linear in them."""
        arrays, edges = sizes.arrays, sizes.edges
        storage, every = arrays.storage, np.arange(len(arrays.storage))
        is_write = fusion.kernel[edges.write_node] >= 0
        written = storage[edges.write_tensor]
        is_compiled = np.zeros(len(storage), dtype=np.bool_)
        is_compiled[written[is_write & (fusion.part[edges.write_node] != EAGER_PART)]] = True
        is_compiled &= _IS_ACTIVATION[arrays.role] & (storage == every)
        tensor_bytes = np.where(is_compiled[storage], 0.0, types.tensor_bytes)
        np.maximum.at(tensor_bytes, written, np.where(is_compiled[written], fusion.written_bytes, 0.0))

        nodes = len(arrays.kind)
        first, last = np.full(len(storage), nodes), np.full(len(storage), _NOWHERE)
        chosen = is_write & is_compiled[written] & (fusion.written_bytes > 0.0)
        _spread(first, last, written[chosen], fusion.kernel[edges.write_node[chosen]])
        read = (fusion.read_bytes > 0.0) & is_compiled[fusion.owner]
        reader = fusion.kernel[edges.read_node[read]]
        np.maximum.at(last, fusion.owner[read], np.where(reader >= 0, reader, edges.read_node[read]))
        # What a compiled part returns, it returns in the end.
        returned = fusion.owner[read & (fusion.part[edges.read_node] == EAGER_PART)]
        np.maximum.at(last, returned, _last_of_part(sizes, fusion, first[returned]))
        chosen = is_compiled[fusion.kept_storage]
        np.maximum.at(last, fusion.kept_storage[chosen], fusion.kernel[fusion.kept_reader[chosen]])
        # What is built of several parts is there before the first of them is written to it.
        parts = np.flatnonzero(fusion.is_joined)
        target = storage[sizes.outputs(edges.read_node[parts])]
        chosen = is_compiled[target]
        np.minimum.at(first, target[chosen], fusion.kernel[fusion.writer[parts[chosen]]])
        is_buffer = is_compiled & (last != _NOWHERE) & (tensor_bytes > 0.0)
        outputs = [
            start + output
            for graph, start in zip(sizes.graphs, arrays.tensor_start.tolist(), strict=False)
            for output in graph.outputs
        ]
        is_output = np.zeros(len(storage), dtype=np.bool_)
        is_output[storage[np.array(outputs, dtype=np.int64)]] = True
        buffers = np.flatnonzero(is_buffer)
        home, last = _homes(sizes, fusion, buffers, first, last, is_output=is_output, tensor_bytes=tensor_bytes)
        taken = buffers[home[buffers] == buffers]
        given_back = taken[~is_output[taken]]
        return cls(
            is_buffer=is_compiled,
            tensor_bytes=tensor_bytes,
            taken_at=first[taken],
            taken=taken,
            given_back_at=last[given_back],
            given_back=given_back,
        )


def _last_of_part(sizes: GraphSizes, fusion: Fusion, nodes: IndexArray) -> IndexArray:
    """The last node of the compiled part that each of some nodes belongs to."""
    graph = np.repeat(np.arange(len(sizes.graphs)), np.diff(sizes.arrays.node_start))
    place = graph * (int(fusion.part.max(initial=0)) + 1) + fusion.part
    last = np.zeros(int(place.max(initial=0)) + 1, dtype=np.int64)
    compiled = np.flatnonzero(fusion.part != EAGER_PART)
    np.maximum.at(last, place[compiled], compiled)
    result: IndexArray = last[place[np.minimum(nodes, len(place) - 1)]]
    return result


def _spread(first: IndexArray, last: IndexArray, places: IndexArray, nodes: IndexArray) -> None:
    """Let places be in use at these nodes."""
    np.minimum.at(first, places, nodes)
    np.maximum.at(last, places, nodes)


def _homes(
    sizes: GraphSizes,
    fusion: Fusion,
    buffers: IndexArray,
    first: IndexArray,
    last: IndexArray,
    *,
    is_output: BoolArray,
    tensor_bytes: FloatArray,
) -> tuple[IndexArray, IndexArray]:
    """The storage whose memory each storage uses, and until which node that memory is held, [T] each."""
    keys = _keys(sizes, buffers, tensor_bytes)
    part, is_loop = fusion.part.tolist(), fusion.is_loop.tolist()
    is_placed = (fusion.is_loop | sizes.is_kind(*_WRITING_KINDS)).tolist()
    graph_of = np.repeat(np.arange(len(sizes.graphs)), np.diff(sizes.arrays.node_start)).tolist()
    takes: defaultdict[int, list[int]] = defaultdict(list)
    ends: defaultdict[int, list[int]] = defaultdict(list)
    for buffer, start, stop in zip(buffers.tolist(), first[buffers].tolist(), last[buffers].tolist(), strict=True):
        takes[start].append(buffer)
        if not is_output[buffer] and part[start] == part[stop]:
            ends[stop].append(buffer)
    once = _read_once(sizes, fusion)
    home, held = np.arange(len(is_output)).tolist(), last.tolist()
    free: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
    for node in sorted({*takes, *ends}):
        ended = ends[node]
        for buffer in takes[node] if is_placed[node] else ():
            key = keys[buffer]
            own = next((other for other in ended if keys[other] == key and (other, node) in once), None)
            place = free[graph_of[node], part[node], key]
            if own is not None and is_loop[node]:
                ended.remove(own)
            elif place:
                own = place.pop()
            else:
                continue
            home[buffer] = home[own]
            held[home[own]] = max(held[home[own]], held[buffer])
            if is_output[buffer]:
                is_output[home[own]] = True
        for buffer in ended:
            free[graph_of[node], part[node], keys[buffer]].append(buffer)
    return np.array(home, dtype=np.int64), np.array(held, dtype=np.int64)


def _read_once(sizes: GraphSizes, fusion: Fusion) -> set[tuple[int, int]]:
    """Storages that one loop of a kernel reads in one pass, each with the kernel."""
    node = sizes.edges.read_node
    chosen = np.flatnonzero(fusion.is_loop[node] & (fusion.read_bytes > 0.0))
    readers: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    pairs = zip(fusion.owner[chosen].tolist(), fusion.kernel[node[chosen]].tolist(), node[chosen].tolist(), strict=True)
    for storage, kernel, reader in pairs:
        readers[storage, kernel].add(reader)
    is_pointwise = (~is_reduction(sizes)).tolist()
    return {key for key, nodes in readers.items() if len(nodes) == 1 and all(is_pointwise[node] for node in nodes)}


def _keys(sizes: GraphSizes, buffers: IndexArray, tensor_bytes: FloatArray) -> dict[int, int]:
    """Numbers that are equal for storages of equal size and format at every batch."""
    rows = storage_polynomials(sizes, tensor_bytes, buffers)
    numbers: Sequence[int] = number_rows(np.column_stack([rows, tensor_bytes[buffers]])).tolist() if len(rows) else []
    return dict(zip(buffers.tolist(), numbers, strict=True))
