"""Which number format every tensor is stored in and every operator computes in, at a precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache

import numpy as np
import numpy.typing as npt

from dippm.costs.autocast import CASTABLE, Casts, follow_autocast, own_formats
from dippm.costs.edges import IndexArray
from dippm.costs.sizes import GraphSizes
from dippm.graph import CONTRACTION_KINDS, RECURRENT_KINDS, DType, Graph, OpKind, TensorRole
from dippm.graph.codes import encode, mark, tabulate

__all__ = [
    "MATRIX_KINDS",
    "Arithmetic",
    "Precision",
    "TypePlan",
    "autocast_type",
    "plan_types",
    "precision_of_run",
    "stored_half",
    "whole_model_type",
]

FloatArray = npt.NDArray[np.float64]


class Precision(StrEnum):
    """Arithmetic of a run, with PyTorch's meaning of each name.

    ``FP32`` is PyTorch's default: TF32 inside cuDNN (convolutions and recurrent layers) where the device has it, full
    FP32 in matrix products. ``FP32_STRICT`` has TF32 nowhere, ``TF32`` everywhere. ``AMP`` and ``AMP_BF16`` are
    autocast over FP32 weights. ``FP16`` and ``BF16`` are the whole model in that format, but for what a model whose
    weights have 16 bits already keeps in FP32. The first three leave every tensor as the model has it.

    Parts of a model that switch autocast on or off themselves do so at every precision. Autocast casts no float64.
    ``FP16`` and ``BF16`` convert it where the model's weights, buffers and inputs have it, as ``Module.to`` does, and
    with it what a model of float64 alone makes. A model that makes float64 of other types keeps all of it.
    """

    FP32 = "fp32"
    FP32_STRICT = "fp32-strict"
    TF32 = "tf32"
    AMP = "amp"
    AMP_BF16 = "amp-bf16"
    FP16 = "fp16"
    BF16 = "bf16"

    @property
    def is_autocast(self) -> bool:
        """Whether weights stay as they are and operators compute in 16 bits where autocast has them do so."""
        return self in _AUTOCAST


class Arithmetic(StrEnum):
    """Format that an operator computes in.

    ``TF32`` means that TF32 is allowed: on a device without it the operator runs in FP32.
    """

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"


_ARITHMETIC = {
    DType.FLOAT64: Arithmetic.FP64,
    # Four products of real numbers, in no tensor core: autocast leaves complex numbers as they are.
    DType.COMPLEX64: Arithmetic.FP32,
    DType.COMPLEX128: Arithmetic.FP64,
    DType.FLOAT16: Arithmetic.FP16,
    DType.BFLOAT16: Arithmetic.BF16,
    DType.FLOAT8: Arithmetic.FP8,
}
_CUDNN_KINDS = RECURRENT_KINDS | {OpKind.CONV, OpKind.CONV_TRANSPOSE, OpKind.CONV_WEIGHT_GRAD, OpKind.RECURRENT_GRAD}
MATRIX_KINDS = CONTRACTION_KINDS | _CUDNN_KINDS | {OpKind.ATTENTION_GRAD}
_WHOLE_MODEL = {Precision.FP16: DType.FLOAT16, Precision.BF16: DType.BFLOAT16}
_AUTOCAST = {Precision.AMP: DType.FLOAT16, Precision.AMP_BF16: DType.BFLOAT16}
# Autocast leaves PyTorch's defaults for what it does not cast.
_WITH_TF32_IN_CUDNN = frozenset({Precision.FP32, *_AUTOCAST})
_INT8 = frozenset({DType.INT8, DType.UINT8, DType.INT4, DType.UINT4})

# The same by the place of each type in DType.
_FLOAT32, _FLOAT64 = (tuple(DType).index(dtype) for dtype in (DType.FLOAT32, DType.FLOAT64))
_BYTES = tabulate(DType, lambda dtype: dtype.bits / 8.0)
_IS_FLOATING = mark(DType, [dtype for dtype in DType if dtype.is_floating])
_IS_CASTABLE = mark(DType, CASTABLE)
_IS_HALF = mark(DType, _AUTOCAST.values())
_IS_GIVEN_ROLE = mark(TensorRole, [TensorRole.INPUT, TensorRole.PARAMETER, TensorRole.BUFFER])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TypePlan:
    """Number formats of one graph at one precision.

    Args:
        precision: The precision.
        arithmetic_number: Format that each node computes in, as its place in :class:`Arithmetic`.
        tensor_format: Format of each tensor as stored, as its place in ``DType``.
        read_format: Format of each read of :class:`~dippm.costs.edges.Edges`, after a cast if there is one.
        casts: Cast kernels that autocast adds.

    Shapes:
        arithmetic_number: [n_nodes]; tensor_format: [T]; read_format: [E].
    """

    precision: Precision
    arithmetic_number: IndexArray
    tensor_format: IndexArray
    read_format: IndexArray
    casts: Casts
    #: Bytes per element of each tensor as stored, [T].
    tensor_bytes: FloatArray = field(init=False)
    #: Bytes per element of each read, after a cast if there is one, [E].
    read_bytes: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        """Look up the bytes of each format."""
        object.__setattr__(self, "tensor_bytes", _BYTES[self.tensor_format])
        object.__setattr__(self, "read_bytes", _BYTES[self.read_format])

    @classmethod
    def from_sizes(cls, sizes: GraphSizes, precision: Precision, *, keeps_casts: bool = True) -> TypePlan:
        """Assign a number format to every tensor, read and node; it holds for every batch size.

        Args:
            sizes: The graphs.
            precision: The precision.
            keeps_casts: See :func:`~dippm.costs.autocast.follow_autocast`.
        """
        held, casts = sizes.arrays.dtype, Casts.none()
        if precision in _WHOLE_MODEL:
            held = np.where(_is_given(sizes), _number(_WHOLE_MODEL[precision]), held)
        lower = _AUTOCAST.get(precision)
        if lower is not None or own_formats(sizes.arrays.attributes, lower):
            held, read, casts = follow_autocast(sizes, lower, given=held, keeps_casts=keeps_casts)
        else:
            read = held[sizes.edges.read_tensor]
        return cls(
            precision=precision,
            arithmetic_number=_arithmetics(precision)[sizes.arrays.kind, _deciding_types(sizes, read)],
            tensor_format=held,
            read_format=read,
            casts=casts,
        )

    @property
    def arithmetic(self) -> tuple[Arithmetic, ...]:
        """Format that each node computes in."""
        formats = tuple(Arithmetic)
        return tuple(formats[number] for number in self.arithmetic_number.tolist())

    def is_computed_in(self, *formats: Arithmetic) -> npt.NDArray[np.bool_]:
        """Which nodes compute in one of these formats, [n_nodes]."""
        return mark(Arithmetic, formats)[self.arithmetic_number]


def plan_types(graph: Graph, precision: Precision = Precision.FP32) -> TypePlan:
    """The formats of one graph, see :meth:`TypePlan.from_sizes`."""
    return TypePlan.from_sizes(GraphSizes.from_graph(graph), precision)


def whole_model_type(precision: Precision) -> DType | None:
    """The 16-bit format that a precision stores a whole model in; None where weights stay as they are."""
    return _WHOLE_MODEL.get(precision)


def autocast_type(precision: Precision) -> DType | None:
    """The 16-bit format that autocast casts to at a precision; None where there is no autocast."""
    return _AUTOCAST.get(precision)


def precision_of_run(precision: Precision, stored: DType | None) -> Precision:
    """The precision that a model runs in, which its weights decide where they have 16 bits and nothing casts them.

    Args:
        precision: What was asked for.
        stored: The 16-bit format that most of its weights are stored in, see :func:`stored_half`.
    """
    if stored is None or whole_model_type(precision) is not None or precision.is_autocast:
        return precision
    return next(whole for whole, dtype in _WHOLE_MODEL.items() if dtype is stored)


def _number(dtype: DType) -> int:
    return tuple(DType).index(dtype)


def stored_half(kept: Mapping[DType, int]) -> DType | None:
    """The 16-bit format that most weights of a model are stored in, quantised ones apart; None where they are not.

    Args:
        kept: Number of weights by their type, frozen ones too, as :meth:`~dippm.graph.GraphArrays.kept` counts them.
    """
    whole = [dtype for dtype in kept if dtype.is_floating and dtype.bits >= DType.FLOAT16.bits]
    most = max(whole, key=lambda dtype: kept[dtype], default=None)
    return most if most in _AUTOCAST.values() else None


def _is_given(sizes: GraphSizes) -> npt.NDArray[np.bool_]:
    """Which tensors get the format that a whole model is stored in, [T].

    A model that has 16 bits already computes in FP32 where it says so, and one that makes float64 in that.
    """
    arrays = sizes.arrays
    is_half = [stored_half(kept) is not None for kept in arrays.kept()]
    is_of_half = np.repeat(is_half, np.diff(arrays.tensor_start))
    is_given = _IS_CASTABLE[arrays.dtype] | ((arrays.dtype == _FLOAT64) & ~_makes_float64(sizes))
    result: npt.NDArray[np.bool_] = np.where(is_of_half, _IS_HALF[arrays.dtype], is_given)
    return result


def _makes_float64(sizes: GraphSizes) -> npt.NDArray[np.bool_]:
    """Which tensors are of models that make float64 of other types, or have constants of it, [T].

    A model that is given none but float64 makes it of that, where it follows the type of what it is given.
    """
    arrays, edges = sizes.arrays, sizes.edges
    is_float64 = arrays.dtype == _FLOAT64
    is_made = is_float64 & mark(TensorRole, [TensorRole.CONSTANT])[arrays.role]
    if is_float64.any():
        reads = np.bincount(edges.read_node, weights=is_float64[edges.read_tensor], minlength=len(arrays.kind)) > 0
        is_made[edges.write_tensor] |= is_float64[edges.write_tensor] & ~reads[edges.write_node]
    is_other_given = _IS_CASTABLE[arrays.dtype] & _IS_GIVEN_ROLE[arrays.role]
    n_graphs = len(arrays.tensor_start) - 1
    graph = np.repeat(np.arange(n_graphs), np.diff(arrays.tensor_start))
    makes, has_other, has_float64 = (
        np.bincount(graph[each], minlength=n_graphs) > 0
        for each in (is_made, is_other_given, is_float64 & _IS_GIVEN_ROLE[arrays.role])
    )
    result: npt.NDArray[np.bool_] = (makes & (has_other | ~has_float64))[graph]
    return result


def _deciding_types(sizes: GraphSizes, read: IndexArray) -> IndexArray:
    """The format that decides each node's arithmetic: that of its first floating input, else of its first input.

    Args:
        sizes: The graph's arrays.
        read: Format of each read.

    Shapes:
        read: [E]; result: [n_nodes].
    """
    node = sizes.edges.read_node
    result = np.full(len(sizes.arrays.kind), _FLOAT32)
    # Of several values for one place the last one stays: that of the node's first read.
    result[node[::-1]] = read[::-1]
    deciding = np.flatnonzero(_IS_FLOATING[read] & ~sizes.is_kind(OpKind.EMBEDDING)[node])[::-1]
    result[node[deciding]] = read[deciding]
    return result


@cache
def _arithmetics(precision: Precision) -> IndexArray:
    """The arithmetic of each kind of operator on each type, [kinds, types]."""
    return np.stack([encode([_arithmetic(kind, dtype, precision) for dtype in DType], Arithmetic) for kind in OpKind])


def _arithmetic(kind: OpKind, dtype: DType, precision: Precision) -> Arithmetic:
    if dtype in _ARITHMETIC:
        return _ARITHMETIC[dtype]
    if kind not in MATRIX_KINDS:
        return Arithmetic.FP32
    if dtype in _INT8:
        return Arithmetic.INT8
    if precision is Precision.TF32 or (kind in _CUDNN_KINDS and precision in _WITH_TF32_IN_CUDNN):
        return Arithmetic.TF32
    return Arithmetic.FP32
