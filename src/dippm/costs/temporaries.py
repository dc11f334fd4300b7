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
sort, top-k                a second copy of keys and int64 positions: an assumption on the radix sort's buffers
=========================  =================================================================================

Batch norm, softmax, reductions and element-wise operators allocate nothing. A graph that lists such an output itself
(a node with several outputs) is not given it twice.
"""

from __future__ import annotations

import numpy as np

from dippm.costs.contraction import AttentionTable, RecurrentTable
from dippm.costs.edges import IndexArray
from dippm.costs.polynomial import FloatArray, pad
from dippm.costs.precision import Arithmetic, TypePlan
from dippm.costs.sizes import GraphSizes
from dippm.costs.streaming import RowTable
from dippm.graph import OpKind

__all__ = ["dropped_outputs", "scratch"]

_INDEX_BYTES = 8.0
_STATISTIC_BYTES = 4.0
_STATISTICS = {OpKind.LAYER_NORM: 2.0, OpKind.GROUP_NORM: 2.0, OpKind.RMS_NORM: 1.0}


def dropped_outputs(sizes: GraphSizes, types: TypePlan, *, row: RowTable, attention: AttentionTable) -> FloatArray:
    """Bytes that each node writes and drops at once.

    Shapes:
        result: [n_nodes, D].
    """
    nodes = sizes.graph.nodes
    # Statistics of norms.
    count = np.array([_STATISTICS.get(nodes[i].kind, 0.0) for i in row.table.node], dtype=np.float64)
    count[[len(nodes[i].outputs) > 1 for i in row.table.node]] = 0.0
    statistics = row.rows * (count * _STATISTIC_BYTES)[:, None]
    # Log-sum-exp: batch x heads x queries.
    is_half = [types.arithmetic[i] in (Arithmetic.FP16, Arithmetic.BF16) for i in attention.table.node]
    single = np.array([len(nodes[i].outputs) == 1 for i in attention.table.node], dtype=np.bool_)
    lse = attention.rows * (_STATISTIC_BYTES * (single & np.array(is_half, dtype=np.bool_)))[:, None]
    pools: IndexArray = np.array(
        [i for i, node in enumerate(nodes) if node.kind is OpKind.MAX_POOL and len(node.outputs) == 1], dtype=np.int64
    )
    indices = sizes.elements[sizes.outputs(pools)] * _INDEX_BYTES
    return _spread(len(nodes), (row.table.node, statistics), (attention.table.node, lse), (pools, indices))


def scratch(sizes: GraphSizes, types: TypePlan, *, recurrent: RecurrentTable) -> FloatArray:
    """Bytes that each node uses while it runs and never hands on.

    Shapes:
        result: [n_nodes, D].
    """
    nodes = sizes.graph.nodes
    layers: IndexArray = recurrent.table.node
    hidden, _, _, directions, gates, _ = recurrent.constants
    width = hidden * directions * gates
    element = np.array([types.tensor_bytes[nodes[i].outputs[0]] if nodes[i].outputs else 4.0 for i in layers])
    all_gates = recurrent.positions * (width * element)[:, None]
    sorts: IndexArray = np.array([i for i, node in enumerate(nodes) if node.kind is OpKind.SORT], dtype=np.int64)
    keys = sizes.inputs(sorts, 0)
    copies = sizes.elements[keys] * (types.tensor_bytes[keys] + _INDEX_BYTES)[:, None]
    return _spread(len(nodes), (layers, all_gates), (sorts, copies))


def _spread(count: int, *parts: tuple[IndexArray, FloatArray]) -> FloatArray:
    width = max(polynomials.shape[1] for _, polynomials in parts)
    result = np.zeros((count, width))
    for node, polynomials in parts:
        result[node] += pad(polynomials, width)
    return result
