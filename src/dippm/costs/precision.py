"""Which number format every tensor is stored in and every operator computes in, at a precision.

``amp`` and ``amp-bf16`` follow PyTorch's autocast for CUDA: its lists (``ATen/autocast_mode.h``, PyTorch 2.13) by kind
of operator, its type promotion, its extra cast kernels, and its cache, which casts each parameter once per forward and
keeps the copy until the forward ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.sizes import GraphSizes
from dippm.graph import ARITHMETIC_KINDS, CONTRACTION_KINDS, RECURRENT_KINDS, DType, Graph, Node, OpKind, TensorRole
from dippm.graph.codes import encode, mark, tabulate

__all__ = [
    "LOWERED",
    "RAISED",
    "Arithmetic",
    "Casts",
    "Precision",
    "TypePlan",
    "plan_types",
    "stored_half",
    "whole_model_type",
]

#: Attribute of a node that autocast runs in its 16-bit format whatever its kind, as timm's "fast norm" makes norms.
LOWERED = "is_lowered"
#: Attribute of a node that computes in FP32 under autocast whatever its kind, as the products of written-out attention.
RAISED = "is_raised"

FloatArray = npt.NDArray[np.float64]


class Precision(StrEnum):
    """Arithmetic of a run, with PyTorch's meaning of each name.

    ``FP32`` is PyTorch's default: TF32 inside cuDNN (convolutions and recurrent layers) where the device has it, full
    FP32 in matrix products. ``FP32_STRICT`` has TF32 nowhere, ``TF32`` everywhere. ``AMP`` and ``AMP_BF16`` are
    autocast over FP32 weights. ``FP16`` and ``BF16`` are the whole model in that format, but for what a model whose
    weights have 16 bits already keeps in FP32. The first three leave every tensor as the model has it.
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
_MATRIX_KINDS = CONTRACTION_KINDS | _CUDNN_KINDS | {OpKind.ATTENTION_GRAD}
_WHOLE_MODEL = {Precision.FP16: DType.FLOAT16, Precision.BF16: DType.BFLOAT16}
_AUTOCAST = {Precision.AMP: DType.FLOAT16, Precision.AMP_BF16: DType.BFLOAT16}
_CASTABLE = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})
_INT8 = frozenset({DType.INT8, DType.UINT8, DType.INT4, DType.UINT4})

# Autocast's lists by kind. Not on any list: batch and instance norm, pooling, most activations; they keep the type of
# their input. Sums, products, norms and softmax read what they are given and write FP32 in the same kernel.
_LOWER_KINDS = CONTRACTION_KINDS | RECURRENT_KINDS | {OpKind.PRELU}
_FP32_KINDS = frozenset(
    {OpKind.LAYER_NORM, OpKind.GROUP_NORM, OpKind.RMS_NORM, OpKind.POW, OpKind.SOFTPLUS, OpKind.RESIZE}
)
_FP32_FUNCTIONS = frozenset(
    {"acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
     "tan", "pow", "dist", "pdist", "cdist", "renorm", "logsumexp", "cosine_similarity"}
)  # fmt: skip
_FP32_OUTPUT_KINDS = frozenset({OpKind.SOFTMAX, OpKind.LOG_SOFTMAX, OpKind.CUMULATIVE})
_FP32_OUTPUT_FUNCTIONS = frozenset({"sum", "prod", "norm", "l1", "l2", "sum_square", "vector_norm"})
_FUNCTION_KINDS = frozenset({OpKind.UNARY, OpKind.BINARY, OpKind.REDUCE})
_PROMOTING_KINDS = ARITHMETIC_KINDS | {OpKind.BINARY, OpKind.CONCAT}
# Promotion by a cast kernel before the operator; element-wise kernels convert as they load instead.
_CASTING_PROMOTERS = frozenset({OpKind.CONCAT, OpKind.GRID_SAMPLE})

# What they read stays as it is, and what they write is of the type of their first input that can be cast.
_FOLLOWING_KINDS = (
    frozenset(OpKind)
    - _LOWER_KINDS
    - _FP32_KINDS
    - _FUNCTION_KINDS
    - _FP32_OUTPUT_KINDS
    - _PROMOTING_KINDS
    - _CASTING_PROMOTERS
    - {OpKind.CAST}
)

# How the formats of each kind follow; those that promote take the format that all of their inputs have.
_LOWERS, _FOLLOWS, _PROMOTES, _OTHERWISE = range(4)
_RULE_OF_KIND = np.full(len(OpKind), _OTHERWISE)
for _rule, _kinds in (
    (_LOWERS, _LOWER_KINDS),
    (_FOLLOWS, _FOLLOWING_KINDS),
    (_PROMOTES, ARITHMETIC_KINDS - _FP32_KINDS),
):
    _RULE_OF_KIND[mark(OpKind, _kinds)] = _rule
# In place of a format: the one that the model states.
_STATED = -1

_HALF_BITS = 16

# The same by the place of each type in DType.
_FLOAT32 = tuple(DType).index(DType.FLOAT32)
_BYTES = tabulate(DType, lambda dtype: dtype.bits / 8.0)
_IS_FLOATING = mark(DType, [dtype for dtype in DType if dtype.is_floating])
_IS_CASTABLE = mark(DType, _CASTABLE)
_IS_HALF = mark(DType, _AUTOCAST.values())
_CASTABLE_NUMBERS = frozenset(np.flatnonzero(_IS_CASTABLE).tolist())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Casts:
    """The extra kernels that bring a tensor to the format in which a node reads it.

    Args:
        node: Node right before which the cast runs.
        tensor: Tensor that is cast.
        from_bytes: Bytes per element read.
        to_bytes: Bytes per element written.
        is_cached: Whether the copy is kept until the forward ends; else it lives as long as its node runs.

    Shapes:
        All [C], in execution order.
    """

    node: IndexArray
    tensor: IndexArray
    from_bytes: FloatArray
    to_bytes: FloatArray
    is_cached: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        """Number of cast kernels."""
        return len(self.node)

    def take(self, chosen: npt.NDArray[np.bool_]) -> Casts:
        """Some of them."""
        return Casts(
            node=self.node[chosen],
            tensor=self.tensor[chosen],
            from_bytes=self.from_bytes[chosen],
            to_bytes=self.to_bytes[chosen],
            is_cached=self.is_cached[chosen],
        )


_NO_CASTS = Casts(
    node=np.zeros(0, dtype=np.int64),
    tensor=np.zeros(0, dtype=np.int64),
    from_bytes=np.zeros(0),
    to_bytes=np.zeros(0),
    is_cached=np.zeros(0, dtype=np.bool_),
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TypePlan:
    """Number formats of one graph at one precision.

    Args:
        precision: The precision.
        arithmetic_number: Format that each node computes in, as its place in :class:`Arithmetic`.
        tensor_bytes: Bytes per element of each tensor as stored.
        read_bytes: Bytes per element of each read of :class:`~dippm.costs.edges.Edges`, after a cast if there is one.
        casts: Cast kernels that autocast adds.

    Shapes:
        arithmetic_number: [n_nodes]; tensor_bytes: [T]; read_bytes: [E].
    """

    precision: Precision
    arithmetic_number: IndexArray
    tensor_bytes: FloatArray
    read_bytes: FloatArray
    casts: Casts

    @classmethod
    def from_sizes(cls, sizes: GraphSizes, precision: Precision) -> TypePlan:
        """Assign a number format to every tensor, read and node; it holds for every batch size."""
        if precision in _AUTOCAST:
            held, read, casts = _Autocast(sizes, lower=_AUTOCAST[precision]).follow()
        else:
            held, casts = sizes.arrays.dtype, _NO_CASTS
            if precision in _WHOLE_MODEL:
                held = np.where(_is_given(sizes), _number(_WHOLE_MODEL[precision]), held)
            read = held[sizes.edges.read_tensor]
        return cls(
            precision=precision,
            arithmetic_number=_arithmetics(precision)[sizes.arrays.kind, _deciding_types(sizes, read)],
            tensor_bytes=_BYTES[held],
            read_bytes=_BYTES[read],
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


def _number(dtype: DType) -> int:
    return tuple(DType).index(dtype)


def stored_half(parameters: Mapping[DType, int]) -> DType | None:
    """The 16-bit format that most weights of a model are stored in, quantised ones apart; None where they are not.

    Args:
        parameters: Number of weights by their type, as :meth:`~dippm.graph.GraphArrays.parameters` counts them.
    """
    whole = [dtype for dtype in parameters if dtype.is_floating and dtype.bits >= _HALF_BITS]
    most = max(whole, key=lambda dtype: parameters[dtype], default=None)
    return most if most in _AUTOCAST.values() else None


def _is_given(sizes: GraphSizes) -> npt.NDArray[np.bool_]:
    """Which tensors get the format that a whole model is stored in, [T].

    A model that has 16 bits already computes in FP32 where it says so.
    """
    arrays = sizes.arrays
    is_half = [stored_half(parameters) is not None for parameters in arrays.parameters()]
    is_of_half = np.repeat(is_half, np.diff(arrays.tensor_start))
    result: npt.NDArray[np.bool_] = np.where(is_of_half, _IS_HALF[arrays.dtype], _IS_CASTABLE[arrays.dtype])
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
    if kind not in _MATRIX_KINDS:
        return Arithmetic.FP32
    if dtype in _INT8:
        return Arithmetic.INT8
    if precision is Precision.TF32 or (kind in _CUDNN_KINDS and precision is Precision.FP32):
        return Arithmetic.TF32
    return Arithmetic.FP32


class _Autocast:
    """One walk over the nodes with the formats that autocast leaves behind, each as its place in ``DType``."""

    def __init__(self, sizes: GraphSizes, *, lower: DType) -> None:
        self._sizes = sizes
        self._lower = _number(lower)
        arrays = sizes.arrays
        # Behind the last tensor that of none: a node that follows no input leaves what the model states.
        self._held: list[int] = np.append(arrays.dtype, _STATED).tolist()
        self._owner: list[int] = arrays.storage.tolist()
        self._has_shape: list[bool] = (arrays.rank > 0).tolist()
        self._is_parameter: list[bool] = mark(TensorRole, [TensorRole.PARAMETER])[arrays.role].tolist()
        self._cached: set[int] = set()
        self._casts: list[tuple[int, int, int, int, bool]] = []

    def follow(self) -> tuple[IndexArray, IndexArray, Casts]:
        """Format of each tensor, [T], and of each read, [E], and the casts."""
        held, owner, sizes = self._held, self._owner, self._sizes
        arrays, edges = sizes.arrays, sizes.edges
        is_castable = _IS_CASTABLE[arrays.dtype]
        # A view of the same type holds what its owner holds.
        is_view = (arrays.storage != np.arange(len(arrays.storage))) & (arrays.dtype == arrays.dtype[arrays.storage])
        keeps, takes = is_view.tolist(), (is_castable & ~is_view).tolist()
        tensors, written = edges.read_tensor.tolist(), edges.write_tensor.tolist()
        reads: list[int] = []
        rows = zip(
            self._rules(),
            self._first_castable(is_castable).tolist(),
            pairwise(np.searchsorted(edges.read_node, np.arange(len(sizes.nodes) + 1)).tolist()),
            pairwise(edges.output_start.tolist()),
            strict=True,
        )
        for position, (rule, leader, (first, stop), (first_write, last_write)) in enumerate(rows):
            inputs = tensors[first:stop]
            read = [held[index] for index in inputs]
            if rule == _LOWERS:
                self._cast(position, inputs, read, self._lower)
                result = self._lower
            elif rule == _FOLLOWS or (rule == _PROMOTES and len(set(read)) < 2):
                result = held[leader]
            else:
                node = sizes.nodes[position]
                target = self._target(node, read)
                if target is not None:
                    self._cast(position, inputs, read, target)
                result = self._result(node, inputs, read)
            reads += read
            for index in written[first_write:last_write]:
                if keeps[index]:
                    held[index] = held[owner[index]]
                elif takes[index] and result != _STATED:
                    held[index] = result
        return np.array(held[:-1], dtype=np.int64), np.array(reads, dtype=np.int64), self._made_casts()

    def _rules(self) -> list[int]:
        """How the formats of each node follow."""
        rules = _RULE_OF_KIND[self._sizes.arrays.kind]
        rules[[node.attributes.get(LOWERED) is True for node in self._sizes.nodes]] = _LOWERS
        rules[[node.attributes.get(RAISED) is True for node in self._sizes.nodes]] = _OTHERWISE
        numbers: list[int] = rules.tolist()
        return numbers

    def _first_castable(self, is_castable: npt.NDArray[np.bool_]) -> IndexArray:
        """The first input of each node that can be cast, which stays so; the number of tensors where it has none."""
        edges = self._sizes.edges
        result = np.full(len(self._sizes.nodes), len(is_castable))
        chosen = np.flatnonzero(is_castable[edges.read_tensor])[::-1]
        # Of several values for one place the last one stays.
        result[edges.read_node[chosen]] = edges.read_tensor[chosen]
        return result

    def _made_casts(self) -> Casts:
        node, tensor, source, target, is_cached = np.array(self._casts, dtype=np.int64).reshape(-1, 5).T
        return Casts(
            node=node,
            tensor=tensor,
            from_bytes=_BYTES[source],
            to_bytes=_BYTES[target],
            is_cached=is_cached.astype(np.bool_),
        )

    def _target(self, node: Node, read: list[int]) -> int | None:
        """The format that floating inputs are cast to before the node runs, None where they stay."""
        kind, is_raised = node.kind, node.attributes.get(RAISED) is True
        if (
            is_raised
            or kind in _FP32_KINDS
            or (kind in _FUNCTION_KINDS and node.attributes.get("function") in _FP32_FUNCTIONS)
        ):
            return _FLOAT32
        return _widest(read) if kind in _CASTING_PROMOTERS else None

    def _cast(self, position: int, inputs: list[int], read: list[int], target: int) -> None:
        """Cast what a node reads in another format than the target, and put down that it reads the target."""
        for place, (index, held) in enumerate(zip(inputs, read, strict=True)):
            if held == target or held not in _CASTABLE_NUMBERS:
                continue
            read[place] = target
            owner = self._owner[index]
            is_cached = held == _FLOAT32 and self._is_parameter[owner]
            if owner in self._cached if is_cached else index in inputs[:place]:
                continue
            if is_cached:
                self._cached.add(owner)
            self._casts.append((position, index, held, target, is_cached))

    def _result(self, node: Node, inputs: list[int], read: list[int]) -> int:
        """The format of a node's floating outputs."""
        kind = node.kind
        if kind is OpKind.CAST:
            return _STATED
        if kind in _FP32_OUTPUT_KINDS or (
            kind is OpKind.REDUCE and node.attributes.get("function") in _FP32_OUTPUT_FUNCTIONS
        ):
            return _FLOAT32
        if kind in _PROMOTING_KINDS:
            # A zero-dimensional tensor does not promote one that has dimensions.
            ranked = [held for held, index in zip(read, inputs, strict=True) if self._has_shape[index]]
            widest = _widest(ranked or read)
            return _STATED if widest is None else widest
        return next((held for held in read if held in _CASTABLE_NUMBERS), _STATED)


def _widest(formats: list[int]) -> int | None:
    """The one format that all castable tensors have, FP32 where they differ, None where there are none."""
    castable = _CASTABLE_NUMBERS.intersection(formats)
    if len(castable) > 1:
        return _FLOAT32
    return next(iter(castable), None)
