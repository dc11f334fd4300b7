"""Memory that operators take besides the outputs that the model sees, in eager PyTorch on CUDA without gradients.

=========================  =================================================================================
operator                   what it allocates
=========================  =================================================================================
max pooling                the index of every maximum (int64), written, then dropped: the CUDA kernel always
                           returns it
layer norm                 mean and reciprocal deviation of every row (fp32), dropped
group norm                 the same per sample and group, in the input's format
RMS norm                   one number per row (fp32)
attention in 16 bits       log-sum-exp of every query (fp32), of the flash kernel
LSTM, GRU, RNN             all gates of one layer over the whole sequence: an assumption on cuDNN's workspace
product with packed        the weight in 16 bits, where its library unpacks it for many rows (counted for few as well)
weight
gradient of a softmax      what it is handed times the softmax, which its kernel reads
sort of long rows          a second copy of keys and int64 positions: an assumption on the radix sort's buffers;
                           none where a block of threads holds a row, nor in a search for the largest or for
                           places
=========================  =================================================================================

Batch norm, softmax, reductions and element-wise operators allocate nothing. A graph that lists such an output itself
(a node with several outputs) is not given it twice.
"""

from __future__ import annotations

import numpy as np

from dippm.costs.contraction import AttentionTable, GemmTable, RecurrentTable
from dippm.costs.edges import IndexArray
from dippm.costs.packings import number_of_packing, read_packings
from dippm.costs.polynomial import FloatArray, multiply, pad, scale
from dippm.costs.precision import Arithmetic, TypePlan
from dippm.costs.sizes import GraphSizes
from dippm.costs.sorted_rows import is_held_in_blocks
from dippm.costs.streaming import RowTable
from dippm.graph import OpKind
from dippm.graph.codes import tabulate

__all__ = ["dropped_outputs", "scratch"]

_INDEX_BYTES = 8.0
_STATISTIC_BYTES = 4.0
_FULL_BYTES = 4.0
_UNPACKED_BYTES = 2.0
_STATISTICS = {OpKind.LAYER_NORM: 2.0, OpKind.GROUP_NORM: 2.0, OpKind.RMS_NORM: 1.0}
_STATISTICS_OF_KIND = tabulate(OpKind, lambda kind: _STATISTICS.get(kind, 0.0))


def dropped_outputs(sizes: GraphSizes, types: TypePlan, *, row: RowTable, attention: AttentionTable) -> FloatArray:
    """Bytes that each node writes and drops at once.

    Shapes:
        result: [n_nodes, D].
    """
    # Statistics of norms.
    outputs = np.diff(sizes.edges.output_start)
    count = np.where(outputs > 1, 0.0, _STATISTICS_OF_KIND[sizes.arrays.kind])[row.table.node]
    statistics = row.rows * (count * _STATISTIC_BYTES)[:, None]
    # Log-sum-exp: batch x heads x queries.
    is_half = types.is_computed_in(Arithmetic.FP16, Arithmetic.BF16)[attention.table.node]
    single = outputs[attention.table.node] == 1
    lse = attention.rows * (_STATISTIC_BYTES * (single & is_half))[:, None]
    pools: IndexArray = np.flatnonzero(sizes.is_kind(OpKind.MAX_POOL) & (outputs == 1))
    indices = sizes.elements_of(sizes.outputs(pools)) * _INDEX_BYTES
    return _spread(len(outputs), (row.table.node, statistics), (attention.table.node, lse), (pools, indices))


def scratch(sizes: GraphSizes, types: TypePlan, *, recurrent: RecurrentTable, gemm: GemmTable) -> FloatArray:
    """Bytes that each node uses while it runs and never hands on.

    Shapes:
        result: [n_nodes, D].
    """
    layers: IndexArray = recurrent.table.node
    hidden, _, _, directions, gates, _ = recurrent.constants
    width = hidden * directions * gates
    element = np.append(types.tensor_bytes, _FULL_BYTES)[sizes.outputs(layers)]
    all_gates = recurrent.positions * (width * element)[:, None]
    sorts = np.flatnonzero(sizes.is_kind(OpKind.SORT) & ~is_held_in_blocks(sizes))
    keys = sizes.inputs(sorts, 0)
    copies = scale(sizes.elements_of(keys), types.tensor_bytes[keys] + _INDEX_BYTES)
    products, weights = _unpacked(sizes, gemm)
    # That of a logarithm makes no such product.
    is_softmax = sizes.is_kind(OpKind.SOFTMAX_GRAD) & ~sizes.has_function(OpKind.LOG_SOFTMAX.value)
    gradients: IndexArray = np.flatnonzero(is_softmax)
    handed = sizes.inputs(gradients, 0)
    weighted = scale(sizes.elements_of(handed), types.tensor_bytes[handed])
    return _spread(len(sizes.nodes), (layers, all_gates), (sorts, copies), (products, weights), (gradients, weighted))


def _unpacked(sizes: GraphSizes, gemm: GemmTable) -> tuple[IndexArray, FloatArray]:
    """Products that have their weight unpacked from some number of rows on, and its bytes in 16 bits."""
    node = gemm.table.node[gemm.is_packed]
    number = sizes.read_attributes(node, number_of_packing)
    most_rows, *_ = read_packings(number)
    node = node[(number >= 0.0) & np.isfinite(most_rows)]
    # Of a stack, such as experts are, one matrix after the other.
    matrix = (sizes.dimension(sizes.inputs(node, 1), place) for place in (-2, -1))
    return node, multiply(*matrix) * _UNPACKED_BYTES


def _spread(count: int, *parts: tuple[IndexArray, FloatArray]) -> FloatArray:
    width = max(polynomials.shape[1] for _, polynomials in parts)
    result = np.zeros((count, width))
    for node, polynomials in parts:
        result[node] += pad(polynomials, width)
    return result
