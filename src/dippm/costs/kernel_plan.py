"""The distinct kernels of a workload: each is timed once, however often the model runs it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from dippm.costs.compiled_layout import runs_channels_last
from dippm.costs.conditions import Conditions, Layout, Runtime
from dippm.costs.families import FAMILY_OF_KIND, WorkFamily
from dippm.costs.host import CAST_DISPATCH_US, FUSED_DISPATCH_US, goes_through_cudnn, host_dispatch_us
from dippm.costs.kernels.problems import ELEMENTWISE_OPERATORS, Family
from dippm.costs.memory_format import MemoryFormats
from dippm.costs.numbering import is_first, number_rows
from dippm.costs.polynomial import FloatArray, scale
from dippm.costs.row_sums import sums_rows
from dippm.costs.software import DEFAULT_SOFTWARE, Software
from dippm.costs.workload import Workload
from dippm.graph import OpKind
from dippm.graph.codes import mark, tabulate

__all__ = ["ROW_TABLES", "STREAM_RATES", "Distinct", "KernelPlan"]

IndexArray = npt.NDArray[np.int64]

# Element-wise operators with a table of their own; all others behave like the plainest of as many inputs.
_ELEMENTWISE_TABLES = {
    "relu": "relu",
    "gelu": "gelu",
    "tanh": "tanh",
    "add": "add",
    "mul": "mul",
    "div": "div",
    "pow": "pow",
}
_BINARY_TABLES = frozenset({"add", "mul", "div", "pow"})
_GROUP_OF_FAMILY = {
    WorkFamily.ELEMENTWISE: "stream",
    WorkFamily.ROW: "norm",
    WorkFamily.REDUCTION: "pool",
    WorkFamily.POOL: "pool",
    WorkFamily.MOVE: "move",
    WorkFamily.OTHER: "move",
}
ROW_TABLES = {OpKind.SOFTMAX: Family.SOFTMAX, OpKind.LOG_SOFTMAX: Family.SOFTMAX, OpKind.LAYER_NORM: Family.LAYER_NORM}
_ROW_TABLE_OF_KIND = tabulate(OpKind, lambda kind: list(Family).index(ROW_TABLES.get(kind, Family.SOFTMAX)))

# Which rate an operator takes, and its element-wise table where it reads one tensor or several, by kind.
_GROUP_OF_SOME = {OpKind.BATCH_NORM: "norm", OpKind.CONCAT: "join", OpKind.PAD: "join", OpKind.FILL: "stream"}
STREAM_RATES = tuple(sorted({*_GROUP_OF_FAMILY.values(), *_GROUP_OF_SOME.values()}))
"""Names of the rates that kernels bound by memory take."""

_OPERATORS = tuple(ELEMENTWISE_OPERATORS)
_FILL_NUMBER = tuple(OpKind).index(OpKind.FILL)


def _group_of(kind: OpKind) -> int:
    group = _GROUP_OF_SOME.get(kind) or _GROUP_OF_FAMILY.get(FAMILY_OF_KIND[kind])
    return STREAM_RATES.index(group) if group else -1


def _operator_of(kind: OpKind, *, is_binary: bool) -> int:
    table = _ELEMENTWISE_TABLES.get(kind.value)
    if table is None or (table in _BINARY_TABLES) != is_binary:
        table = "add" if is_binary else "relu"
    return _OPERATORS.index(table)


_GROUP_OF_KIND = tabulate(OpKind, _group_of).astype(np.int64)
_UNARY_OPERATOR_OF_KIND = tabulate(OpKind, partial(_operator_of, is_binary=False)).astype(np.int64)
_BINARY_OPERATOR_OF_KIND = tabulate(OpKind, partial(_operator_of, is_binary=True)).astype(np.int64)
# Element-wise operators, of which those of several tensors are another kernel; batch norm's others are small.
_IS_PLAIN = mark(
    OpKind, [k for k in OpKind if FAMILY_OF_KIND[k] is WorkFamily.ELEMENTWISE and k is not OpKind.BATCH_NORM]
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Distinct:
    """Kernels that differ, and which of them each node runs.

    Args:
        node: Nodes of the family.
        index: Column of the first of each distinct kernel, in the order in which they appear.
        inverse: Distinct kernel of each node.
    """

    node: IndexArray
    index: IndexArray
    inverse: IndexArray

    @classmethod
    def of(cls, node: IndexArray, *keys: npt.ArrayLike) -> Distinct:
        """Group nodes whose keys, [n] or [n, D] each, are equal."""
        if not len(node):
            return cls(node=node, index=node, inverse=node)
        rows = np.concatenate([np.asarray(key, dtype=np.float64).reshape(len(node), -1) for key in keys], axis=1)
        # Negative zeros become positive ones, so that equal rows are equal bytes.
        number = number_rows(rows + 0.0)
        return cls(node=node, index=np.flatnonzero(is_first(number)), inverse=number)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KernelPlan:
    """The distinct kernels of a workload; built once per graph and precision.

    Args:
        work: The workload.
        formats: The order in which each node finds its image, by the layout that the models are called with.
        is_launched: Nodes that launch a kernel; of those that run as one it is the last one.
        arithmetic: Format of each node, as a position in ``Arithmetic``.
        gemm: Distinct matrix products.
        convolution: Distinct convolutions.
        attention: Distinct fused attentions.
        recurrent: Distinct recurrent layers.
        row: Distinct softmax and norms that a table covers.
        stream: Distinct kernels that memory binds.
        stream_group: Which rate each of ``stream.node`` takes, as a position in ``STREAM_RATES``.
        stream_operator: Element-wise table of each of ``stream.node``, as a position in ``ELEMENTWISE_OPERATORS``.
        casts: Distinct casts of autocast, by what they move.
        dispatch_us: Host time to launch each node, casts included, microseconds.
        is_searched: Which nodes are convolutions whose library looks for a kernel at each call.
        is_backward: Whether autograd launches each node and not the model's Python code.
        is_turned: Whether a compiler runs the convolutions of each graph with channels last, [G].
        feeds_slowly: See :attr:`~dippm.costs.software.Software.feeds_slowly`.
        has_cudnn_9: See :attr:`~dippm.costs.software.Software.has_cudnn_9`.
        joins_in_vectors: See :attr:`~dippm.costs.software.Software.joins_in_vectors`.
        answers: What functions said of it, see :func:`~dippm.costs.kept_answers.keep_answers`.
    """

    work: Workload
    formats: Mapping[Layout, MemoryFormats]
    is_launched: npt.NDArray[np.bool_]
    arithmetic: IndexArray
    gemm: Distinct
    convolution: Distinct
    attention: Distinct
    recurrent: Distinct
    row: Distinct
    stream: Distinct
    stream_group: IndexArray
    stream_operator: IndexArray
    casts: Distinct
    dispatch_us: FloatArray
    is_searched: npt.NDArray[np.bool_]
    is_backward: npt.NDArray[np.bool_]
    is_turned: npt.NDArray[np.bool_]
    feeds_slowly: bool
    has_cudnn_9: bool
    joins_in_vectors: bool
    answers: dict[Hashable, object] = field(default_factory=dict, init=False, repr=False)

    def has_own_rates(self, conditions: Conditions) -> bool:
        """Whether rates that were measured on an architecture hold: those of eager kernels, NCHW, today's libraries."""
        return self.has_cudnn_9 and conditions.layout is Layout.NCHW and conditions.runtime is not Runtime.COMPILE

    @classmethod
    def from_workload(
        cls,
        work: Workload,
        *,
        is_backward: npt.NDArray[np.bool_] | None = None,
        software: Software = DEFAULT_SOFTWARE,
    ) -> KernelPlan:
        """Group the kernels of a workload.

        Args:
            work: The workload.
            is_backward: See above; without it no node belongs to a backward pass.
            software: The release that runs them.
        """
        arithmetic = work.types.arithmetic_number
        is_turned = np.zeros(len(work.sizes.graphs), dtype=np.bool_)
        if software.turns_images and work.fusion is not None:
            is_turned = runs_channels_last(work, is_backward)
        if is_backward is None:
            is_backward = np.zeros(len(arithmetic), dtype=np.bool_)
        traffic = np.concatenate([work.bytes_read, work.bytes_written], axis=1)

        def distinct(table: npt.NDArray[np.float64], node: IndexArray, *more: npt.ArrayLike) -> Distinct:
            if not len(node):
                return Distinct.of(node)
            sizes = table.reshape(-1, len(node), table.shape[1])
            keys = np.moveaxis(sizes, 1, 0).reshape(len(node), -1)
            return Distinct.of(node, keys, arithmetic[node], traffic[node], *more)

        formats = _formats(work, is_turned)
        gemm, conv, attention, recurrent = work.gemm, work.convolution, work.attention, work.recurrent
        is_tabled = _is_tabled_row(work)
        row_node = work.row.table.node[is_tabled]
        table_codes = _ROW_TABLE_OF_KIND[work.sizes.arrays.kind[row_node]]
        width = work.row.table.polynomials.shape[1]
        row_sizes = work.row.table.polynomials.reshape(2, len(is_tabled), width)[:, is_tabled]
        stream_node, group, operator = _stream_nodes(work, is_backward, exclude=row_node)
        return cls(
            work=work,
            formats=formats,
            is_launched=np.ones(len(arithmetic), dtype=np.bool_) if work.fusion is None else work.fusion.is_launched,
            arithmetic=arithmetic,
            gemm=distinct(gemm.table.polynomials, gemm.table.node, gemm.has_bias, gemm.is_linear, gemm.is_packed),
            convolution=distinct(
                conv.table.polynomials,
                conv.table.node,
                conv.constants.T,
                conv.is_transposed,
                conv.is_weight_gradient,
                *(of_layout.is_last[conv.table.node] for of_layout in formats.values()),
                is_backward[conv.table.node],
            ),
            attention=distinct(
                attention.table.polynomials,
                attention.table.node,
                attention.is_causal,
                attention.has_mask,
                attention.products,
            ),
            recurrent=distinct(recurrent.table.polynomials, recurrent.table.node, recurrent.constants.T),
            row=distinct(row_sizes.reshape(-1, width), row_node, table_codes),
            stream=Distinct.of(
                stream_node,
                traffic[stream_node],
                group,
                operator,
            ),
            stream_group=group,
            stream_operator=operator,
            casts=_distinct_casts(work),
            dispatch_us=_dispatch_us(work),
            is_searched=goes_through_cudnn(work.sizes)
            if software.searches_convolutions
            else np.zeros_like(is_backward),
            is_backward=is_backward,
            is_turned=is_turned,
            feeds_slowly=software.feeds_slowly,
            has_cudnn_9=software.has_cudnn_9,
            joins_in_vectors=software.joins_in_vectors,
        )


def _formats(work: Workload, is_turned: npt.NDArray[np.bool_]) -> dict[Layout, MemoryFormats]:
    formats = MemoryFormats.of_layouts(work.sizes)
    if not is_turned.any():
        return formats
    of_node = np.repeat(is_turned, np.diff(work.sizes.arrays.node_start))
    called, turned = formats[Layout.NCHW], formats[Layout.NHWC]
    return {**formats, Layout.NCHW: called.where(~of_node, turned)}


def _distinct_casts(work: Workload) -> Distinct:
    casts = work.types.casts
    return Distinct.of(casts.node, scale(work.cast_elements, casts.from_bytes + casts.to_bytes))


def _dispatch_us(work: Workload) -> FloatArray:
    dispatch = host_dispatch_us(work.sizes)
    if work.fusion is not None:
        is_loop = work.fusion.is_loop
        dispatch[is_loop] = np.where(work.fusion.is_launched, FUSED_DISPATCH_US, 0.0)[is_loop]
        dispatch[work.sizes.is_kind(OpKind.VIEW)] = 0.0
    np.add.at(dispatch, work.types.casts.node, CAST_DISPATCH_US)
    return dispatch


def _is_tabled_row(work: Workload) -> npt.NDArray[np.bool_]:
    """Which of the softmax and norm nodes a table covers: FP32 in and out, over the last dimension, and not fused."""
    node = work.row.table.node
    is_tabled = work.sizes.is_kind(*ROW_TABLES)[node] & (work.fusion is None)
    if not is_tabled.any():
        return is_tabled
    is_fp32 = work.types.tensor_bytes == 4.0
    is_tabled &= work.row.is_last & is_fp32[work.sizes.inputs(node, 0)] & is_fp32[work.sizes.outputs(node)]
    return is_tabled


def _stream_nodes(
    work: Workload, is_backward: npt.NDArray[np.bool_], *, exclude: IndexArray
) -> tuple[IndexArray, IndexArray, IndexArray]:
    """Nodes that memory binds, and their rate and element-wise table, see :class:`KernelPlan`."""
    sizes, edges = work.sizes, work.sizes.edges
    kind = sizes.arrays.kind
    is_chosen = _GROUP_OF_KIND[kind] >= 0
    is_chosen[exclude] = False
    chosen = np.flatnonzero(is_chosen)
    owner = np.repeat(np.arange(len(kind)), np.diff(edges.input_start))
    is_binary = np.zeros(len(kind), dtype=np.bool_)
    is_binary[owner[edges.input_tensor != edges.input_tensor[edges.input_start[owner]]]] = True
    is_binary &= _IS_PLAIN[kind]
    operator = np.where(is_binary, _BINARY_OPERATOR_OF_KIND[kind], _UNARY_OPERATOR_OF_KIND[kind])
    # The gradient of a table is filled with zeros first, which is most of what it moves.
    like = np.where(sums_rows(sizes, is_backward), _FILL_NUMBER, kind)
    return chosen, _GROUP_OF_KIND[like[chosen]], operator[chosen]
