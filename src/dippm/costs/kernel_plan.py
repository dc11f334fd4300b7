"""The distinct kernels of a workload: each is timed once, however often the model runs it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dippm.costs.families import WorkFamily
from dippm.costs.host import CAST_DISPATCH_US, host_dispatch_us
from dippm.costs.kernels.problems import Family
from dippm.costs.polynomial import FloatArray, pad
from dippm.costs.precision import Arithmetic
from dippm.costs.workload import Workload
from dippm.graph import OpKind

__all__ = ["ROW_TABLES", "Distinct", "KernelPlan"]

IndexArray = npt.NDArray[np.int64]

_ARITHMETICS = tuple(Arithmetic)
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
ROW_TABLES = {OpKind.SOFTMAX: Family.SOFTMAX, OpKind.LOG_SOFTMAX: Family.SOFTMAX, OpKind.LAYER_NORM: Family.LAYER_NORM}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Distinct:
    """Kernels that differ, and which of them each node runs.

    Args:
        node: Nodes of the family.
        index: Column of one representative of each distinct kernel.
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
        _, index, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
        return cls(node=node, index=index, inverse=inverse.reshape(-1))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KernelPlan:
    """The distinct kernels of a workload; built once per graph and precision.

    Args:
        work: The workload.
        arithmetic: Format of each node, as a position in ``Arithmetic``.
        gemm: Distinct matrix products.
        convolution: Distinct convolutions.
        attention: Distinct fused attentions.
        recurrent: Distinct recurrent layers.
        row: Distinct softmax and norms that a table covers.
        stream: Distinct kernels that memory binds.
        stream_group: Which rate each of ``stream.node`` takes.
        stream_operator: Element-wise table of each of ``stream.node``.
        dispatch_us: Host time to launch each node, casts included, microseconds.
        is_backward: Whether autograd launches each node and not the model's Python code.
    """

    work: Workload
    arithmetic: IndexArray
    gemm: Distinct
    convolution: Distinct
    attention: Distinct
    recurrent: Distinct
    row: Distinct
    stream: Distinct
    stream_group: npt.NDArray[np.str_]
    stream_operator: npt.NDArray[np.str_]
    dispatch_us: FloatArray
    is_backward: npt.NDArray[np.bool_]

    @classmethod
    def from_workload(cls, work: Workload, *, is_backward: npt.NDArray[np.bool_] | None = None) -> KernelPlan:
        """Group the kernels of a workload; without ``is_backward`` no node belongs to a backward pass."""
        arithmetic = np.array([_ARITHMETICS.index(value) for value in work.types.arithmetic], dtype=np.int64)
        traffic_width = max(work.bytes_read.shape[1], work.bytes_written.shape[1])
        traffic = np.concatenate([pad(work.bytes_read, traffic_width), pad(work.bytes_written, traffic_width)], axis=1)

        def distinct(table: npt.NDArray[np.float64], node: IndexArray, *more: npt.ArrayLike) -> Distinct:
            if not len(node):
                return Distinct.of(node)
            sizes = table.reshape(-1, len(node), table.shape[1])
            keys = np.moveaxis(sizes, 1, 0).reshape(len(node), -1)
            return Distinct.of(node, keys, arithmetic[node], traffic[node], *more)

        gemm, conv, attention, recurrent = work.gemm, work.convolution, work.attention, work.recurrent
        is_tabled = _is_tabled_row(work)
        row_node = work.row.table.node[is_tabled]
        kinds = [node.kind for node in work.sizes.graph.nodes]
        table_codes = [list(ROW_TABLES.values()).index(ROW_TABLES[kinds[i]]) for i in row_node]
        width = work.row.table.polynomials.shape[1]
        row_sizes = work.row.table.polynomials.reshape(2, len(is_tabled), width)[:, is_tabled]
        stream_node, group, operator = _stream_nodes(work, exclude=row_node)
        return cls(
            work=work,
            arithmetic=arithmetic,
            gemm=distinct(gemm.table.polynomials, gemm.table.node, gemm.is_linear),
            convolution=distinct(
                conv.table.polynomials, conv.table.node, conv.constants.T, conv.is_transposed, conv.is_weight_gradient
            ),
            attention=distinct(
                attention.table.polynomials, attention.table.node, attention.is_causal, attention.products
            ),
            recurrent=distinct(recurrent.table.polynomials, recurrent.table.node, recurrent.constants.T),
            row=distinct(row_sizes.reshape(-1, width), row_node, table_codes),
            stream=Distinct.of(
                stream_node,
                traffic[stream_node],
                np.unique(group, return_inverse=True)[1],
                np.unique(operator, return_inverse=True)[1],
            ),
            stream_group=group,
            stream_operator=operator,
            dispatch_us=_dispatch_us(work),
            is_backward=np.zeros(len(arithmetic), dtype=np.bool_) if is_backward is None else is_backward,
        )


def _dispatch_us(work: Workload) -> FloatArray:
    dispatch = host_dispatch_us(work.sizes.graph)
    np.add.at(dispatch, work.types.casts.node, CAST_DISPATCH_US)
    return dispatch


def _is_tabled_row(work: Workload) -> npt.NDArray[np.bool_]:
    """Which of the softmax and norm nodes a table covers: FP32 in and out, over the last dimension."""
    node = work.row.table.node
    nodes = work.sizes.graph.nodes
    is_fp32 = np.array(
        [
            nodes[i].kind in ROW_TABLES
            and all(work.types.tensor_bytes[t] == 4.0 for t in (nodes[i].inputs[0], nodes[i].outputs[0]))
            for i in node
        ],
        dtype=np.bool_,
    )
    return is_fp32 & work.row.is_last if len(node) else np.zeros(0, dtype=np.bool_)


def _stream_nodes(
    work: Workload, *, exclude: IndexArray
) -> tuple[IndexArray, npt.NDArray[np.str_], npt.NDArray[np.str_]]:
    """Nodes that memory binds: their rate's name and element-wise table."""
    groups = {
        WorkFamily.ELEMENTWISE: "stream",
        WorkFamily.ROW: "norm",
        WorkFamily.REDUCTION: "pool",
        WorkFamily.POOL: "pool",
        WorkFamily.MOVE: "move",
        WorkFamily.OTHER: "move",
    }
    tabled = set(exclude.tolist())
    chosen, group, operator = [], [], []
    for position, (node, family) in enumerate(zip(work.sizes.graph.nodes, work.family, strict=True)):
        if family not in groups or position in tabled:
            continue
        chosen.append(position)
        group.append("norm" if node.kind is OpKind.BATCH_NORM else groups[family])
        is_binary = (
            len(set(node.inputs)) > 1 and family is WorkFamily.ELEMENTWISE and node.kind is not OpKind.BATCH_NORM
        )
        table = _ELEMENTWISE_TABLES.get(node.kind.value)
        if table is None or (table in ("add", "mul", "div", "pow")) != is_binary:
            table = "add" if is_binary else "relu"
        operator.append(table)
    return (
        np.array(chosen, dtype=np.int64),
        np.array(group, dtype=np.str_),
        np.array(operator, dtype=np.str_),
    )
