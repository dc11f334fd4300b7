"""The number formats that PyTorch's autocast for CUDA gives the tensors of a graph, and the casts that it adds.

After its lists (``ATen/autocast_mode.h``, PyTorch 2.13) by kind of operator, its type promotion, its extra cast
kernels, and its cache, which casts each parameter once per forward and keeps the copy until the forward ends. Without
it, see :attr:`~dippm.costs.software.Software.keeps_casts`, a parameter is cast for each node that reads it.

A model may switch autocast on or off for parts of it, see :data:`LOWERS_TO` and :data:`UNCAST`. A node for which it is
switched off computes in the type that it states: what else it reads is taken to be cast by hand there, as a model does
that wants that type. Where autocast is off beside parts that have it, nodes take what they are given, in the type that
it has; what differs in type is cast to what the node states, for PyTorch multiplies nothing of two types. A cast by
hand is not seen where it is none as the model is read, without autocast. Copies of weights that a part makes are taken
to be kept until the forward ends, not until the part does.

Likewise an array without elements is taken to have been made in the type of what it is first joined to, and others made
right beside it in the same: a decoder's cache of keys and values begins as two of them, in the type of the first keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.polynomial import is_nonzero
from dippm.costs.sizes import GraphSizes
from dippm.graph import ARITHMETIC_KINDS, CONTRACTION_KINDS, RECURRENT_KINDS, Attribute, DType, OpKind, TensorRole
from dippm.graph.codes import mark, tabulate

try:
    from dippm.costs import _autocast
except ImportError:  # there was no compiler
    _IS_COMPILED = False
else:
    _IS_COMPILED = True

__all__ = [
    "CASTABLE",
    "CAST_KINDS",
    "DEFAULT_FORMAT",
    "KEPT",
    "LOWERED",
    "LOWERS_TO",
    "NAMED_FORMATS",
    "RAISED",
    "UNCAST",
    "Casts",
    "follow_autocast",
    "own_formats",
]

FloatArray = npt.NDArray[np.float64]

#: Attribute of what autocast runs in its 16-bit format beside products: a norm or softmax, as timm's "fast norm" makes
#: norms, and the copies and products by element inside of a product of stacks of matrices or an Einstein sum.
LOWERED = "is_lowered"
#: Attribute of what computes in FP32 under autocast: a matrix product, as those of written-out attention do, or a
#: logarithm of a softmax whose scores a loss has made FP32.
RAISED = "is_raised"
#: Attribute of a logarithm of a softmax in the type of what it reads, as cross entropy asks for it.
KEPT = "is_kept"
#: Attribute of a node for which the model switches autocast off: it computes in the type that it states.
UNCAST = "is_uncast"
#: Attribute of a node for which the model switches autocast on: one of ``NAMED_FORMATS``.
LOWERS_TO = "lowers_to"
#: Where the model names no format: autocast takes that of the run where there is one, else that of CUDA, FP16.
DEFAULT_FORMAT = "default"
#: The 16-bit formats that a model may name, as values of ``DType``, and what stands where it names none.
NAMED_FORMATS = frozenset({DEFAULT_FORMAT, DType.FLOAT16.value, DType.BFLOAT16.value})
# Kinds that may have the former three attributes.
_MARKED_KINDS = frozenset(
    {OpKind.MATMUL, OpKind.SOFTMAX, OpKind.LOG_SOFTMAX, OpKind.LAYER_NORM, OpKind.GROUP_NORM, OpKind.RMS_NORM,
     OpKind.COPY, OpKind.MUL}
)  # fmt: skip
#: What autocast casts, and casts to.
CASTABLE = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})

# Autocast's lists by kind. Not on any list: batch and instance norm, pooling, most activations; they keep the type of
# their input. Sums, products, norms and softmax of FP16 read what they are given and write FP32 in the same kernel.
_LOWER_KINDS = CONTRACTION_KINDS | RECURRENT_KINDS | {OpKind.PRELU}
_FP32_KINDS = frozenset(
    {OpKind.LAYER_NORM, OpKind.GROUP_NORM, OpKind.RMS_NORM, OpKind.POW, OpKind.SOFTPLUS, OpKind.RESIZE}
)
_FP32_FUNCTIONS = frozenset(
    {"acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
     "tan", "pow", "dist", "pdist", "cdist", "renorm", "logsumexp", "cosine_similarity", "mse_loss", "smooth_l1_loss",
     "huber_loss", "soft_margin_loss", "multi_margin_loss", "multilabel_margin_loss_forward",
     "binary_cross_entropy_with_logits"}
)  # fmt: skip
# Likewise of those that pick an element of each row.
_PICKING_LOSS = "nll_loss"
_FP32_OUTPUT_KINDS = frozenset({OpKind.SOFTMAX, OpKind.LOG_SOFTMAX, OpKind.CUMULATIVE})
_FP32_OUTPUT_FUNCTIONS = frozenset({"sum", "prod", "norm", "l1", "l2", "sum_square", "vector_norm"})
_FUNCTION_KINDS = frozenset({OpKind.UNARY, OpKind.BINARY, OpKind.REDUCE})
#: Kinds of operators whose format autocast decides on; functions of two arrays, of which it does so for few, are not.
CAST_KINDS = _LOWER_KINDS | _FP32_KINDS | _FP32_OUTPUT_KINDS | _FUNCTION_KINDS - {OpKind.BINARY}
_PROMOTING_KINDS = ARITHMETIC_KINDS | {OpKind.BINARY, OpKind.CONCAT}
# Promotion by a cast kernel before the operator; element-wise kernels convert as they load instead.
_CASTING_PROMOTERS = frozenset({OpKind.CONCAT, OpKind.GRID_SAMPLE})

# In place of a format, for what a node reads: it stays as it is; or the one format that all of it has, FP32 where it
# differs. For what a node writes: as the model states it; as the first that it reads of those that can be cast; or the
# one that all of what it reads has, where a number does not promote an array.
_STAYS, _WIDEST = -1, -2
_STATED, _FIRST = -1, -3
# In place of the 16-bit format, which differs.
_LOWER = -4
# In place of that format where the model switches autocast off, where it is off beside parts that have it, and where it
# is off for the whole model.
_OFF, _BESIDE, _NEVER_ON = -1, -2, -3

_FLOAT32, _BFLOAT16 = (tuple(DType).index(dtype) for dtype in (DType.FLOAT32, DType.BFLOAT16))
_BYTES = tabulate(DType, lambda dtype: dtype.bits / 8.0)
_IS_CASTABLE = mark(DType, CASTABLE)
_CASTABLE_NUMBERS = frozenset(np.flatnonzero(_IS_CASTABLE).tolist())
_CASTABLE_BITS = sum(1 << number for number in _CASTABLE_NUMBERS)


def _target_of(kind: OpKind) -> int:
    if kind in _LOWER_KINDS:
        return _LOWER
    if kind in _FP32_KINDS:
        return _FLOAT32
    return _WIDEST if kind in _CASTING_PROMOTERS else _STAYS


def _result_of(kind: OpKind) -> int:
    if kind is OpKind.CAST:
        return _STATED
    if kind in _FP32_OUTPUT_KINDS:
        return _FLOAT32
    return _WIDEST if kind in _PROMOTING_KINDS else _FIRST


_TARGET_OF_KIND = tabulate(OpKind, _target_of).astype(np.int64)
_RESULT_OF_KIND = tabulate(OpKind, _result_of).astype(np.int64)
_IS_CAST_KIND = mark(OpKind, CAST_KINDS)

# What the walk knows of a tensor, in bits.
_IS_VIEW, _IS_FREE, _HAS_SHAPE, _IS_CACHEABLE, _IS_CACHED = 1, 2, 4, 8, 16


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Casts:
    """The extra kernels that bring a tensor to the format in which a node reads it.

    Args:
        node: Node right before which the cast runs.
        tensor: Tensor that is cast.
        from_bytes: Bytes per element read.
        to_bytes: Bytes per element written.
        to_format: What is written, as its place in ``DType``.
        is_cached: Whether the copy is kept until the forward ends; else it lives as long as its node runs.

    Shapes:
        All [C], in execution order.
    """

    node: IndexArray
    tensor: IndexArray
    from_bytes: FloatArray
    to_bytes: FloatArray
    to_format: IndexArray
    is_cached: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, rows: IndexArray) -> Casts:
        """Casts by node, tensor, format before and after, and whether the copy is kept, [C, 5]."""
        node, tensor, source, target, is_cached = rows.T
        return cls(
            node=node,
            tensor=tensor,
            from_bytes=_BYTES[source],
            to_bytes=_BYTES[target],
            to_format=target,
            is_cached=is_cached.astype(np.bool_),
        )

    @classmethod
    def none(cls) -> Casts:
        """No casts."""
        return cls.of(np.zeros((0, 5), dtype=np.int64))

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
            to_format=self.to_format[chosen],
            is_cached=self.is_cached[chosen],
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Walk:
    """A graph as the walk over its nodes needs it; formats are places in ``DType``, or stand-ins of this module.

    Args:
        target: What each node's floating inputs are cast to before it runs.
        result: What its floating outputs are.
        read_start: First read of each node, and behind the last one.
        read_tensor: Tensor of each read.
        write_start: First write of each node, and behind the last one.
        write_tensor: Tensor of each write.
        owner: Tensor that owns each tensor's storage.
        flags: What is known of each tensor, see above; the walk puts down whose copy is kept.
        held: Format of each tensor, at first as the model states it; the walk changes it.

    Shapes:
        All of 64-bit integers. target, result: [n_nodes]; *_start: [n_nodes + 1]; read_tensor: [E]; write_tensor: [W];
        the others: [T].
    """

    target: IndexArray
    result: IndexArray
    read_start: IndexArray
    read_tensor: IndexArray
    write_start: IndexArray
    write_tensor: IndexArray
    owner: IndexArray
    flags: IndexArray
    held: IndexArray

    @classmethod
    def of(cls, sizes: GraphSizes, lower: DType | None, *, given: IndexArray, keeps_casts: bool) -> Walk:
        """Lay out a graph; the arguments are those of :func:`follow_autocast`."""
        arrays, edges = sizes.arrays, sizes.edges
        lowers_to = _lowers_to(sizes, lower)
        target, result = _rules(sizes, given, lowers_to)
        # CUDA has a softmax that reads 16 bits and writes FP32 for FP16 alone (ATen/native/SoftMax.cpp).
        is_softmax = sizes.is_kind(OpKind.SOFTMAX, OpKind.LOG_SOFTMAX) & (target == _STAYS) & (result == _FLOAT32)
        target[is_softmax & (lowers_to == _BFLOAT16)] = _FLOAT32
        # A view of the same type holds what its owner holds.
        is_view = (arrays.storage != np.arange(len(arrays.storage))) & (arrays.dtype == arrays.dtype[arrays.storage])
        is_parameter = mark(TensorRole, [TensorRole.PARAMETER])[arrays.role]
        known = (
            (_IS_VIEW, is_view),
            (_IS_FREE, _IS_CASTABLE[given] & ~is_view),
            (_HAS_SHAPE, arrays.rank > 0),
            (_IS_CACHEABLE, is_parameter[arrays.storage] & keeps_casts),
        )
        return cls(
            target=np.where(target == _LOWER, lowers_to, target),
            result=np.where(result == _LOWER, lowers_to, result),
            read_start=np.searchsorted(edges.read_node, np.arange(len(arrays.kind) + 1)).astype(np.int64, copy=False),
            read_tensor=_typed_reads(sizes),
            write_start=edges.output_start,
            write_tensor=edges.write_tensor,
            owner=arrays.storage,
            flags=np.sum([bit * is_so for bit, is_so in known], axis=0, dtype=np.int64),
            held=given.copy(),
        )

    def run(self) -> tuple[IndexArray, IndexArray]:
        """Format of each read, [E], and the casts, [C, 5], as :meth:`Casts.of` takes them."""
        reads, casts = np.empty_like(self.read_tensor), np.empty((len(self.read_tensor), 5), dtype=np.int64)
        if _IS_COMPILED:
            made = _autocast.follow(
                self.target, self.result, self.read_start, self.read_tensor, self.write_start, self.write_tensor,
                self.owner, self.flags, self.held, reads, casts.reshape(-1), _CASTABLE_BITS, _FLOAT32,
            )  # fmt: skip
        else:
            made = _follow(self, reads, casts)
        return reads, casts[:made]


def follow_autocast(
    sizes: GraphSizes, lower: DType | None, *, given: IndexArray | None = None, keeps_casts: bool = True
) -> tuple[IndexArray, IndexArray, Casts]:
    """Format of each tensor, [T], and of each read of the edges, [E], as its place in ``DType``; and the casts.

    Args:
        sizes: The graph.
        lower: Autocast's 16-bit format; None where it is on in those parts alone for which the model switches it on.
        given: Format of each tensor without autocast, [T]; None for what the model states.
        keeps_casts: Whether copies of parameters are kept until the forward ends.
    """
    walk = Walk.of(sizes, lower, given=sizes.arrays.dtype if given is None else given, keeps_casts=keeps_casts)
    reads, casts = walk.run()
    return walk.held, reads, Casts.of(casts)


def own_formats(attributes: Iterable[Mapping[str, Attribute]], lower: DType | None) -> frozenset[DType]:
    """The formats of those parts of a model for which it switches autocast on.

    Args:
        attributes: Attributes of its nodes.
        lower: The 16-bit format of the run's autocast, None where it is off.
    """
    return frozenset(_own_format(each[LOWERS_TO], lower) for each in attributes if LOWERS_TO in each)


def _own_format(named: Attribute, lower: DType | None) -> DType:
    return lower or DType.FLOAT16 if named == DEFAULT_FORMAT else DType(str(named))


def _lowers_to(sizes: GraphSizes, lower: DType | None) -> IndexArray:
    """The 16-bit format of autocast at each node, or what stands in its place, [n_nodes]."""
    formats = tuple(DType)
    of_run = _BESIDE if lower is None else formats.index(lower)

    def read(attributes: Mapping[str, Attribute]) -> float:
        if UNCAST in attributes:
            return _OFF
        return formats.index(_own_format(attributes[LOWERS_TO], lower)) if LOWERS_TO in attributes else of_run

    starts = sizes.arrays.node_start
    result = sizes.read_attributes(np.arange(starts[-1]), read).astype(np.int64)
    graph = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    is_ever_on = np.bincount(graph[result >= 0], minlength=len(starts) - 1) > 0
    result[~is_ever_on[graph] & (lower is None)] = _NEVER_ON
    return result


def _rules(sizes: GraphSizes, given: IndexArray, lowers_to: IndexArray) -> tuple[IndexArray, IndexArray]:
    """What each node's inputs are cast to, and what its outputs are, [n_nodes].

    Args:
        sizes: The graph.
        given: Format of each tensor without autocast, [T].
        lowers_to: The 16-bit format of autocast at each node, or what stands in its place, [n_nodes].
    """
    kind, is_on = sizes.arrays.kind, lowers_to >= 0
    target, result = _TARGET_OF_KIND[kind], _RESULT_OF_KIND[kind]
    result[target == _LOWER] = _LOWER
    is_in_full = sizes.is_kind(*_FUNCTION_KINDS) & sizes.has_function(*_FP32_FUNCTIONS)
    is_in_full |= sizes.is_kind(OpKind.GATHER) & sizes.has_function(_PICKING_LOSS)
    target[is_in_full & is_on] = _FLOAT32
    result[sizes.is_kind(OpKind.REDUCE) & sizes.has_function(*_FP32_OUTPUT_FUNCTIONS)] = _FLOAT32
    off = np.flatnonzero((lowers_to < 0) & _IS_CAST_KIND[kind])
    stated, is_kept = given[sizes.outputs(off)], lowers_to[off] == _BESIDE
    target[off] = np.where(_IS_CASTABLE[stated], np.where(is_kept & (stated == _FLOAT32), _WIDEST, stated), _STAYS)
    result[off] = np.where(target[off] == _WIDEST, _FIRST, _STATED)
    markable = np.flatnonzero(sizes.is_kind(*_MARKED_KINDS) & is_on)
    is_marked = sizes.read_attributes(markable, _marks, numbers=3) > 0
    lowered, raised, kept = (markable[own] for own in is_marked.T)
    target[lowered] = result[lowered] = _LOWER
    target[kept], result[kept] = _STAYS, _FIRST
    target[raised], result[raised] = _FLOAT32, _RESULT_OF_KIND[kind[raised]]
    never = lowers_to == _NEVER_ON
    target[never], result[never] = _STAYS, _STATED
    return target, result


def _typed_reads(sizes: GraphSizes) -> IndexArray:
    """What each read has the type of, [E]: itself, or for an empty constant what the first of its run is joined to."""
    arrays, edges = sizes.arrays, sizes.edges
    count = len(arrays.role)
    is_constant = mark(TensorRole, [TensorRole.CONSTANT])[arrays.role] & (arrays.rank > 0)
    is_empty = is_constant & ~is_nonzero(sizes.elements[:count])
    is_joined = sizes.is_kind(OpKind.CONCAT)[edges.read_node] & is_empty[edges.read_tensor]
    if not is_joined.any():
        return edges.read_tensor
    typed = edges.read_tensor.copy()
    run = np.cumsum(np.diff(is_empty, prepend=False) & is_empty)
    type_of_run: dict[int, int] = {}
    for place in np.flatnonzero(is_joined).tolist():
        own = int(run[edges.read_tensor[place]])
        if own not in type_of_run:
            beside = edges.read_tensor[edges.read_node == edges.read_node[place]]
            type_of_run[own] = next((each for each in beside.tolist() if not is_empty[each]), int(typed[place]))
        typed[place] = type_of_run[own]
    return typed


def _marks(attributes: Mapping[str, Attribute]) -> tuple[float, float, float]:
    return attributes.get(LOWERED) is True, attributes.get(RAISED) is True, attributes.get(KEPT) is True


def _follow(walk: Walk, reads: IndexArray, casts: IndexArray) -> int:
    """What ``_autocast.c`` does, in Python.

    Args:
        walk: The graph.
        reads: Where the format of each read goes, [E].
        casts: Where the casts go, [E, 5].

    Returns:
        Number of casts.
    """
    held, flags, owner = walk.held.tolist(), walk.flags.tolist(), walk.owner.tolist()
    tensors, written = walk.read_tensor.tolist(), walk.write_tensor.tolist()
    made: list[tuple[int, int, int, int, bool]] = []
    formats: list[int] = []
    rows = zip(
        walk.target.tolist(),
        walk.result.tolist(),
        pairwise(walk.read_start.tolist()),
        pairwise(walk.write_start.tolist()),
        strict=True,
    )
    for position, (target, result, (first, stop), (first_write, last_write)) in enumerate(rows):
        inputs = tensors[first:stop]
        read = [held[index] for index in inputs]
        if target == _WIDEST:
            target = _widest(read)
        if target >= 0:
            for place, (index, source) in enumerate(zip(inputs, read, strict=True)):
                if source == target or source not in _CASTABLE_NUMBERS:
                    continue
                read[place] = target
                is_cached = source == _FLOAT32 and bool(flags[index] & _IS_CACHEABLE)
                if flags[owner[index]] & _IS_CACHED if is_cached else index in inputs[:place]:
                    continue
                if is_cached:
                    flags[owner[index]] |= _IS_CACHED
                made.append((position, index, source, target, is_cached))
        if result == _WIDEST:
            ranked = [source for source, index in zip(read, inputs, strict=True) if flags[index] & _HAS_SHAPE]
            result = _widest(ranked or read)
        elif result == _FIRST:
            result = next((source for source in read if source in _CASTABLE_NUMBERS), _STATED)
        formats += read
        for index in written[first_write:last_write]:
            if flags[index] & _IS_VIEW:
                held[index] = held[owner[index]]
            elif flags[index] & _IS_FREE and result != _STATED:
                held[index] = result
    walk.held[:], walk.flags[:], reads[:] = held, flags, formats
    casts[: len(made)] = np.array(made, dtype=np.int64).reshape(-1, 5)
    return len(made)


def _widest(formats: Sequence[int]) -> int:
    """The one format that all castable tensors have, FP32 where they differ, ``_STATED`` where there are none."""
    castable = _CASTABLE_NUMBERS.intersection(formats)
    if len(castable) > 1:
        return _FLOAT32
    return next(iter(castable), _STATED)
