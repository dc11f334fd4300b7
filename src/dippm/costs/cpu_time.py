"""Time of every operator on a CPU, from three rates that the machine measures in a second and a few shares of them.

An operator takes its arithmetic, its memory traffic and the time to call it, one after the other, as one thread does:

    time = FLOPs / (compute x gflops) + bytes / (stream x bandwidth) + launches x dispatch x time of a tiny operator

``compute``, ``stream`` and ``dispatch`` are coefficients of the operator's family, fitted on measured models. A matrix
product that is narrow or short fills neither vectors nor tiles: its FLOPs count as if it were a little wider and
longer. Every term grows with the operator and shrinks with the rates, so that more work is never predicted to be
faster, and a slower machine neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from dippm.costs.edges import IndexArray
from dippm.costs.families import WorkFamily
from dippm.costs.polynomial import FloatArray
from dippm.costs.workload import Workload
from dippm.errors import DippmError, UsageError
from dippm.graph import OpKind

__all__ = ["CpuFamily", "CpuRates", "CpuShares", "CpuWork", "cpu_seconds"]

# What one core's own caches hold: traffic of an operator beyond it goes at the measured bandwidth at best.
_CACHE_BYTES = 2.0 * 2**20
# What is added to the width and to the length of the sum: a vector of AVX-512 where convolutions run in blocks of
# channels, a few of them in general matrix products.
_CONVOLUTION_EDGE = 16.0
_GEMM_EDGE = 64.0
_US = 1e-6


class CpuFamily(StrEnum):
    """Operators that share their coefficients.

    ``RECURRENT`` are RNN and GRU, which run step by step; an LSTM runs a layer in one call. ``VIEW`` costs its call
    alone.
    """

    GEMM = "gemm"
    POINTWISE = "pointwise"
    CONVOLUTION = "convolution"
    GROUPED = "grouped"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    LSTM = "lstm"
    ROW = "row"
    ELEMENTWISE = "elementwise"
    POOL = "pool"
    MOVE = "move"
    VIEW = "view"


_FAMILY_OF_WORK = {
    WorkFamily.GEMM: CpuFamily.GEMM,
    WorkFamily.CONVOLUTION: CpuFamily.CONVOLUTION,
    WorkFamily.ATTENTION: CpuFamily.ATTENTION,
    WorkFamily.RECURRENT: CpuFamily.RECURRENT,
    WorkFamily.ELEMENTWISE: CpuFamily.ELEMENTWISE,
    WorkFamily.ROW: CpuFamily.ROW,
    WorkFamily.REDUCTION: CpuFamily.POOL,
    WorkFamily.POOL: CpuFamily.POOL,
    WorkFamily.MOVE: CpuFamily.MOVE,
    WorkFamily.OTHER: CpuFamily.MOVE,
    WorkFamily.FREE: CpuFamily.VIEW,
}
_POSITION = {family: position for position, family in enumerate(CpuFamily)}


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuRates:
    """What a CPU reaches, with so many threads.

    Args:
        gflops: Large matrix products in FP32, 10^9 FLOPs per second.
        bandwidth_gb_s: Copying more than the caches hold, bytes read and written, 10^9 per second.
        dispatch_us: One tiny operator, from call to return, microseconds.
        threads: Threads that PyTorch uses for one operator.

    Raises:
        UsageError: ``rates.invalid`` where one is not positive and finite.
    """

    gflops: float
    bandwidth_gb_s: float
    dispatch_us: float
    threads: int

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < float("inf"):
                raise UsageError(f"The CPU's rate {field.name} must be positive. Got {value}.", code="rates.invalid")


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuShares:
    """Coefficients of one family.

    Args:
        compute: Share of ``gflops`` that its arithmetic reaches.
        stream: Share of ``bandwidth_gb_s`` that its traffic reaches within the caches, where it may pass 1; beyond them
            it is at most 1.
        dispatch: Time of one call over that of a tiny operator.

    Raises:
        DippmError: ``artefact.invalid`` where one is not positive and finite.
    """

    compute: float
    stream: float
    dispatch: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < float("inf"):
                raise DippmError(f"The coefficient {field.name} is {value}, which cannot be.", code="artefact.invalid")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CpuWork:
    """What a model asks of a CPU, apart from its speed.

    Args:
        family: Family of each column, its position in :class:`CpuFamily`.
        flops: Floating-point operations, those of matrix products and convolutions with their edges.
        near_bytes: Bytes read and written that the caches may hold.
        far_bytes: Those beyond.
        launches: Calls: one; in an LSTM one for each layer and direction, in other recurrent layers for each step too.

    Shapes:
        family: [n]; the others: [B, n]. A column is a node, or a whole family once they are summed.
    """

    family: IndexArray
    flops: FloatArray
    near_bytes: FloatArray
    far_bytes: FloatArray
    launches: FloatArray

    @classmethod
    def of(cls, workload: Workload, batches: npt.ArrayLike) -> CpuWork:
        """Work of every node at each batch.

        Raises:
            UsageError: ``batch.invalid``.
        """
        at = workload.at(batches)
        family = np.array([_POSITION[_FAMILY_OF_WORK[name]] for name in workload.family], dtype=np.int64)
        convolution, recurrent = at.convolution, at.recurrent
        is_pointwise = (convolution.kernel_height == 1) & (convolution.kernel_width == 1)
        family[convolution.node[is_pointwise]] = _POSITION[CpuFamily.POINTWISE]
        family[convolution.node[convolution.groups > 1]] = _POSITION[CpuFamily.GROUPED]
        nodes = workload.sizes.graph.nodes
        is_norm = np.array([node.kind is OpKind.BATCH_NORM for node in nodes], dtype=np.bool_)
        family[is_norm] = _POSITION[CpuFamily.ROW]
        flops, gemm = at.flops.copy(), at.gemm
        flops[:, gemm.node] *= _edge(gemm.n, _GEMM_EDGE) * _edge(gemm.k, _GEMM_EDGE)
        length = convolution.in_channels * convolution.kernel_height * convolution.kernel_width
        edges = _edge(convolution.out_channels, _CONVOLUTION_EDGE) * _edge(length, _CONVOLUTION_EDGE)
        flops[:, convolution.node] *= np.where(convolution.groups > 1, 1.0, edges)
        moved = at.bytes_read + at.bytes_written
        launches = np.ones_like(moved)
        is_lstm = np.array([nodes[i].kind is OpKind.LSTM for i in recurrent.node], dtype=np.bool_)
        family[recurrent.node[is_lstm]] = _POSITION[CpuFamily.LSTM]
        # A step of a GRU, with three gates, makes about twice the calls of a plain RNN's.
        calls = np.where(is_lstm, 1.0, recurrent.steps * (1.0 + recurrent.gates) / 2.0)
        launches[:, recurrent.node] = calls * recurrent.layers * recurrent.directions
        return cls(
            family=family,
            flops=flops,
            near_bytes=np.minimum(moved, _CACHE_BYTES),
            far_bytes=np.maximum(moved - _CACHE_BYTES, 0.0),
            launches=launches,
        )

    def by_family(self) -> CpuWork:
        """The same work with a column for each family: its time in all is the same."""
        member = np.equal.outer(self.family, np.arange(len(CpuFamily))).astype(np.float64)
        return CpuWork(
            family=np.arange(len(CpuFamily), dtype=np.int64),
            flops=self.flops @ member,
            near_bytes=self.near_bytes @ member,
            far_bytes=self.far_bytes @ member,
            launches=self.launches @ member,
        )


def _edge(size: FloatArray, edge: float) -> FloatArray:
    result: FloatArray = 1.0 + edge / np.maximum(size, 1.0)
    return result


def cpu_seconds(work: CpuWork, rates: CpuRates, shares: Mapping[CpuFamily, CpuShares]) -> FloatArray:
    """Time of every column of the work at each batch, s.

    Args:
        work: What is to be done.
        rates: The machine.
        shares: Coefficients of every family.

    Shapes:
        Result: [B, n].
    """
    compute, stream, dispatch = (
        np.array([getattr(shares[family], name) for family in CpuFamily])[work.family]
        for name in ("compute", "stream", "dispatch")
    )
    bandwidth = 1e9 * rates.bandwidth_gb_s
    result: FloatArray = (
        work.flops / (compute * 1e9 * rates.gflops)
        + work.near_bytes / (stream * bandwidth)
        + work.far_bytes / (np.minimum(stream, 1.0) * bandwidth)
        + work.launches * dispatch * rates.dispatch_us * _US
    )
    return result
