"""Families of operators whose cost is described by the same few sizes."""

from __future__ import annotations

from enum import StrEnum

from dippm.graph import ACTIVATION_KINDS, ARITHMETIC_KINDS, OpKind
from dippm.graph.codes import encode

__all__ = ["FAMILY_NUMBER_OF_KIND", "FAMILY_OF_KIND", "WorkFamily"]


class WorkFamily(StrEnum):
    """What kind of sizes describes an operator's work.

    ``MOVE`` copies elements from place to place, ``OTHER`` has no sizes of its own and is costed by its bytes and
    FLOPs, ``FREE`` launches nothing.
    """

    GEMM = "gemm"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    ELEMENTWISE = "elementwise"
    ROW = "row"
    REDUCTION = "reduction"
    POOL = "pool"
    MOVE = "move"
    OTHER = "other"
    FREE = "free"


_KINDS_OF_FAMILY: dict[WorkFamily, tuple[OpKind, ...]] = {
    WorkFamily.GEMM: (OpKind.LINEAR, OpKind.MATMUL),
    WorkFamily.CONVOLUTION: (OpKind.CONV, OpKind.CONV_TRANSPOSE, OpKind.CONV_WEIGHT_GRAD),
    WorkFamily.ATTENTION: (OpKind.ATTENTION, OpKind.ATTENTION_GRAD),
    WorkFamily.RECURRENT: (OpKind.LSTM, OpKind.GRU, OpKind.RNN, OpKind.RECURRENT_GRAD),
    # At inference batch norm is a scale and a shift per channel.
    WorkFamily.ELEMENTWISE: (
        *ACTIVATION_KINDS,
        *ARITHMETIC_KINDS,
        OpKind.UNARY,
        OpKind.BINARY,
        OpKind.CAST,
        OpKind.BATCH_NORM,
        OpKind.LOCAL_RESPONSE_NORM,
        OpKind.QUANTIZE,
        OpKind.DEQUANTIZE,
        OpKind.DROPOUT,
        OpKind.ELEMENTWISE_GRAD,
        OpKind.OPTIMIZER,
    ),
    WorkFamily.ROW: (
        OpKind.SOFTMAX,
        OpKind.LOG_SOFTMAX,
        OpKind.LAYER_NORM,
        OpKind.RMS_NORM,
        OpKind.GROUP_NORM,
        OpKind.INSTANCE_NORM,
        OpKind.NORM_GRAD,
        OpKind.SOFTMAX_GRAD,
    ),
    WorkFamily.REDUCTION: (OpKind.REDUCE, OpKind.CUMULATIVE, OpKind.SORT),
    WorkFamily.POOL: (OpKind.MAX_POOL, OpKind.AVG_POOL, OpKind.GLOBAL_POOL, OpKind.POOL_GRAD),
    WorkFamily.MOVE: (
        OpKind.COPY,
        OpKind.CONCAT,
        OpKind.PAD,
        OpKind.RESIZE,
        OpKind.GATHER,
        OpKind.SCATTER,
        OpKind.EMBEDDING,
        OpKind.GRID_SAMPLE,
        OpKind.FILL,
        OpKind.RANDOM,
    ),
    WorkFamily.OTHER: (OpKind.FFT, OpKind.CONTROL_FLOW, OpKind.UNKNOWN),
    WorkFamily.FREE: (OpKind.VIEW,),
}

#: The family of every kind.
FAMILY_OF_KIND: dict[OpKind, WorkFamily] = {
    kind: family for family, kinds in _KINDS_OF_FAMILY.items() for kind in kinds
}

FAMILY_NUMBER_OF_KIND = encode([FAMILY_OF_KIND[kind] for kind in OpKind], WorkFamily)
"""Place of the family of every kind in :class:`WorkFamily`, in the order of the kinds."""
