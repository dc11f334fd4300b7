"""Which number format every tensor is stored in and every operator computes in, at a precision.

``amp`` and ``amp-bf16`` follow PyTorch's autocast for CUDA: its lists (``ATen/autocast_mode.h``, PyTorch 2.13) by kind
of operator, its type promotion, its extra cast kernels, and its cache, which casts each parameter once per forward and
keeps the copy until the forward ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import prod

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import Edges, IndexArray
from dippm.graph import ARITHMETIC_KINDS, CONTRACTION_KINDS, RECURRENT_KINDS, DType, Graph, Node, OpKind, TensorRole

__all__ = ["LOWERED", "Arithmetic", "Casts", "Precision", "TypePlan", "plan_types", "stored_half"]

#: Attribute of a node that autocast runs in its 16-bit format whatever its kind, as timm's "fast norm" makes norms.
LOWERED = "is_lowered"

FloatArray = npt.NDArray[np.float64]


class Precision(StrEnum):
    """Arithmetic of a run, with PyTorch's meaning of each name.

    ``FP32`` is PyTorch's default: TF32 inside cuDNN (convolutions and recurrent layers) where the device has it, full
    FP32 in matrix products. ``FP32_STRICT`` has TF32 nowhere, ``TF32`` everywhere. ``AMP`` and ``AMP_BF16`` are
    autocast over FP32 weights. ``FP16`` and ``BF16`` are the whole model in that format. The first three leave
    every tensor as the model has it.
    """

    FP32 = "fp32"
    FP32_STRICT = "fp32-strict"
    TF32 = "tf32"
    AMP = "amp"
    AMP_BF16 = "amp-bf16"
    FP16 = "fp16"
    BF16 = "bf16"


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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TypePlan:
    """Number formats of one graph at one precision.

    Args:
        precision: The precision.
        arithmetic: Format that each node computes in.
        tensor_bytes: Bytes per element of each tensor as stored.
        read_bytes: Bytes per element of each read of :class:`~dippm.costs.edges.Edges`, after a cast if there is one.
        casts: Cast kernels that autocast adds.

    Shapes:
        arithmetic: [n_nodes]; tensor_bytes: [T]; read_bytes: [E].
    """

    precision: Precision
    arithmetic: tuple[Arithmetic, ...]
    tensor_bytes: FloatArray
    read_bytes: FloatArray
    casts: Casts


def plan_types(graph: Graph, precision: Precision = Precision.FP32, *, edges: Edges | None = None) -> TypePlan:
    """Assign a number format to every tensor, read and node.

    Args:
        graph: The model.
        precision: Arithmetic of the run.
        edges: The graph's edges, where they are at hand.

    Returns:
        The plan; it holds for every batch size.
    """
    edges = Edges.from_graph(graph) if edges is None else edges
    held = [tensor.dtype for tensor in graph.tensors]
    if precision in _AUTOCAST:
        return _Autocast(graph, lower=_AUTOCAST[precision]).plan(precision)
    if precision in _WHOLE_MODEL:
        target = _WHOLE_MODEL[precision]
        held = [target if dtype in _CASTABLE else dtype for dtype in held]
    tensor_bytes = np.array([dtype.bits for dtype in held], dtype=np.float64) / 8.0
    empty = np.zeros(0, dtype=np.int64)
    none = Casts(
        node=empty, tensor=empty, from_bytes=np.zeros(0), to_bytes=np.zeros(0), is_cached=np.zeros(0, dtype=np.bool_)
    )
    return TypePlan(
        precision=precision,
        arithmetic=tuple(
            _arithmetic(node, _read_type(node, [held[i] for i in node.inputs if i >= 0]), precision)
            for node in graph.nodes
        ),
        tensor_bytes=tensor_bytes,
        read_bytes=tensor_bytes[edges.read_tensor],
        casts=none,
    )


def stored_half(graph: Graph) -> DType | None:
    """The 16-bit format that most weights of a model are stored in; None where they are not."""
    elements: dict[DType, int] = {}
    for tensor in graph.tensors:
        if tensor.role is TensorRole.PARAMETER and tensor.alias_of is None:
            elements[tensor.dtype] = elements.get(tensor.dtype, 0) + prod(dim.fixed for dim in tensor.shape)
    most = max(elements, key=lambda dtype: elements[dtype], default=None)
    return most if most in _AUTOCAST.values() else None


def _read_type(node: Node, read: list[DType]) -> DType:
    """The format that decides a node's arithmetic: that of its first floating input, else of its first input."""
    if node.kind is OpKind.EMBEDDING or not read:
        return read[0] if read else DType.FLOAT32
    return next((dtype for dtype in read if dtype.is_floating), read[0])


def _arithmetic(node: Node, dtype: DType, precision: Precision) -> Arithmetic:
    if dtype in _ARITHMETIC:
        return _ARITHMETIC[dtype]
    if node.kind not in _MATRIX_KINDS:
        return Arithmetic.FP32
    if dtype in _INT8:
        return Arithmetic.INT8
    if precision is Precision.TF32 or (node.kind in _CUDNN_KINDS and precision is Precision.FP32):
        return Arithmetic.TF32
    return Arithmetic.FP32


class _Autocast:
    """One walk over the nodes with the formats that autocast leaves behind."""

    def __init__(self, graph: Graph, *, lower: DType) -> None:
        self._graph = graph
        self._lower = lower
        self._held = [tensor.dtype for tensor in graph.tensors]
        self._cached: set[int] = set()
        self._casts: list[tuple[int, int, DType, DType, bool]] = []
        self._reads: list[DType] = []

    def plan(self, precision: Precision) -> TypePlan:
        arithmetic = []
        for position, node in enumerate(self._graph.nodes):
            read = self._read(position, node)
            self._reads += read
            self._write(node, read)
            arithmetic.append(_arithmetic(node, _read_type(node, read), precision))
        casts = self._casts
        return TypePlan(
            precision=precision,
            arithmetic=tuple(arithmetic),
            tensor_bytes=_bytes_of(self._held),
            read_bytes=_bytes_of(self._reads),
            casts=Casts(
                node=np.array([cast[0] for cast in casts], dtype=np.int64),
                tensor=np.array([cast[1] for cast in casts], dtype=np.int64),
                from_bytes=_bytes_of([cast[2] for cast in casts]),
                to_bytes=_bytes_of([cast[3] for cast in casts]),
                is_cached=np.array([cast[4] for cast in casts], dtype=np.bool_),
            ),
        )

    def _target(self, node: Node, inputs: list[int]) -> DType | None:
        """The format that floating inputs are cast to before the node runs, None where they stay."""
        kind = node.kind
        if _is_lowered(node):
            return self._lower
        if kind in _FP32_KINDS or (kind in _FUNCTION_KINDS and node.attributes.get("function") in _FP32_FUNCTIONS):
            return DType.FLOAT32
        if kind in _CASTING_PROMOTERS:
            return _widest([self._held[i] for i in inputs])
        return None

    def _read(self, position: int, node: Node) -> list[DType]:
        inputs = [index for index in node.inputs if index >= 0]
        held = self._held
        target = self._target(node, inputs)
        if target is None:
            return [held[index] for index in inputs]
        read = []
        done = set()
        for index in inputs:
            dtype = held[index]
            if dtype not in _CASTABLE or dtype is target:
                read.append(dtype)
                continue
            read.append(target)
            owner = self._graph.tensors[index].alias_of
            owner = index if owner is None else owner
            is_cached = self._graph.tensors[owner].role is TensorRole.PARAMETER and dtype is DType.FLOAT32
            if (is_cached and owner in self._cached) or index in done:
                continue
            done.add(index)
            if is_cached:
                self._cached.add(owner)
            self._casts.append((position, index, dtype, target, is_cached))
        return read

    def _write(self, node: Node, read: list[DType]) -> None:
        tensors, held = self._graph.tensors, self._held
        result = self._result(node, read)
        for index in node.outputs:
            tensor = tensors[index]
            if tensor.alias_of is not None and tensor.dtype is tensors[tensor.alias_of].dtype:
                held[index] = held[tensor.alias_of]
            elif result is not None and tensor.dtype in _CASTABLE:
                held[index] = result

    def _result(self, node: Node, read: list[DType]) -> DType | None:
        """The format of a node's floating outputs, None for the one that the model states."""
        kind = node.kind
        if kind is OpKind.CAST:
            return None
        if _is_lowered(node):
            return self._lower
        function = node.attributes.get("function")
        if kind in _FP32_OUTPUT_KINDS or (kind is OpKind.REDUCE and function in _FP32_OUTPUT_FUNCTIONS):
            return DType.FLOAT32
        if kind in _PROMOTING_KINDS:
            # A zero-dimensional tensor does not promote one that has dimensions.
            ranked = [
                dtype
                for dtype, index in zip(read, (i for i in node.inputs if i >= 0), strict=True)
                if self._graph.tensors[index].shape
            ]
            return _widest(ranked or read)
        return next((dtype for dtype in read if dtype in _CASTABLE), None)


def _is_lowered(node: Node) -> bool:
    return node.kind in _LOWER_KINDS or node.attributes.get(LOWERED) is True


def _widest(dtypes: list[DType]) -> DType | None:
    formats = {dtype for dtype in dtypes if dtype in _CASTABLE}
    if not formats:
        return None
    return formats.pop() if len(formats) == 1 else DType.FLOAT32


def _bytes_of(dtypes: list[DType]) -> FloatArray:
    return np.array([dtype.bits for dtype in dtypes], dtype=np.float64) / 8.0
